// @ts-check
// Loads the style of the pages that change something, when the first of them is opened: the overview does without it.

import { h } from "./core.js";

const link = h("link", { rel: "stylesheet", href: new URL("pages.css", import.meta.url).href });
await new Promise((resolve) => {
  link.addEventListener("load", resolve);
  // Without it they can still be used.
  link.addEventListener("error", resolve);
  document.head.append(link);
});
