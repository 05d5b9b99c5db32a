"use strict";
// The codes are in the fragment, which no server log contains.
const fragment = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname);

const element = (id) => document.getElementById(id);

const send = async (path, body) => {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-tollgate": "1" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
};

const fail = (error) => {
  element("error").textContent = error.message;
  element("error").hidden = false;
};

const showState = async () => {
  const response = await fetch("v1/status");
  const status = await response.json();
  if (!response.ok) throw new Error(status.detail);
  const lines = [
    ["Version", status.version === 0 ? "none published" : status.version],
    ["Revision", status.revision],
    ["Rules", `${status.rules.total}, ${status.rules.managed} of them managed`],
    ["Override rows", status.override_rows],
    ["Database", `${status.database.kind}, ${status.database.up ? "up" : "not in use"}`],
    ["Program", status.program],
  ];
  const cells = lines.flatMap(([name, value]) => {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    text.textContent = String(value);
    return [term, text];
  });
  element("status").replaceChildren(...cells);
  element("state").hidden = false;
};

if (fragment.has("setup")) {
  element("setup").hidden = false;
  element("code").value = fragment.get("setup");
  element("name").focus();
}
if (fragment.has("view")) {
  send("v1/session", { view: fragment.get("view") }).then(showState).catch(fail);
}

element("setup").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  button.disabled = true;
  element("error").hidden = true;
  const body = { code: element("code").value, name: element("name").value, password: element("password").value };
  try {
    const created = await send("v1/setup", body);
    element("setup").hidden = true;
    element("message").textContent = `${created.name} is the first admin, and is logged in.`;
    element("next").hidden = false;
    await showState();
  } catch (error) {
    fail(error);
  } finally {
    button.disabled = false;
  }
});
