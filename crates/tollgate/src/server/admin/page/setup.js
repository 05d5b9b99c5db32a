"use strict";
// The codes are in the fragment, which no server log contains.
const fragment = new URLSearchParams(location.hash.slice(1));
const element = (id) => document.getElementById(id);
const say = (text) => { element("message").textContent = text; };
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
const showStatus = async () => {
  const response = await fetch("v1/status");
  element("status").textContent = JSON.stringify(await response.json(), null, 2);
  element("status").hidden = false;
};
if (fragment.has("setup")) {
  element("setup").hidden = false;
  element("code").value = fragment.get("setup");
}
if (fragment.has("view")) {
  send("v1/session", { view: fragment.get("view") }).then(showStatus, (error) => say(error.message));
}
history.replaceState(null, "", location.pathname);
element("setup").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = { code: element("code").value, name: element("name").value, password: element("password").value };
  send("v1/setup", body).then(
    (created) => {
      element("setup").hidden = true;
      say(`${created.name} is the first admin. Add others with \`tollgate user add\`.`);
      return showStatus();
    },
    (error) => say(error.message),
  );
});
