// The page: who is signed in, which view is shown, and the way between them.
import { signedIn, signIn, signOut, onEnd } from "./api.js";
import { closeDialog, h } from "./dom.js";
import { start, store, watch } from "./store.js";
import { overview } from "./overview.js";
import { user } from "./user.js";
import { egress } from "./egress.js";
import { explain } from "./explain.js";
import { doctor } from "./doctor.js";
import { areHosts, hosts } from "./hosts.js";

let clustered = false; // if true, there is a view of hosts
const views = { overview: ["Overview", overview], egress: ["Egress", egress], explain: ["Explain", explain], doctor: ["Doctor", doctor], hosts: ["Hosts", hosts] };
const main = document.getElementById("main"), nav = document.getElementById("nav");
const link = document.getElementById("link"), out = document.getElementById("out");
let leave = null, stop = null, refused = ""; // why a link did not sign in

document.getElementById("skip").addEventListener("click", (e) => { e.preventDefault(); main.focus(); });
out.addEventListener("click", signOut);
onEnd(() => {
  stop?.();
  // So that nothing that was shown stays in the page's memory.
  location.hash.length > 1 ? location.reload() : show();
});

function where() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return [name || "overview", rest.map(decodeURIComponent)];
  } catch {
    return ["overview", []];
  }
}

function show() {
  leave?.();
  leave = null;
  closeDialog();
  out.hidden = !signedIn();
  if (!signedIn()) {
    nav.replaceChildren();
    link.textContent = "";
    main.replaceChildren(sign());
    return;
  }
  const [name, rest] = where();
  navigate();
  const draw = name === "user" ? user : views[name]?.[1];
  main.replaceChildren();
  if (!draw) {
    main.append(h("h1", null, "There is no such view"));
    return;
  }
  document.title = (views[name]?.[0] ?? "User") + " · Sandbox console";
  leave = draw(main, rest);
}

function navigate() {
  const [name] = where();
  nav.replaceChildren(...Object.entries(views).filter(([id]) => id !== "hosts" || clustered).map(([id, [text]]) => h("a", { href: "#/" + id, "aria-current": id === name ? "page" : null }, text)));
}

function sign() {
  const token = h("input", { type: "password", autocomplete: "off", id: "token", required: true });
  const fault = h("p.bad", { role: "alert" }, refused);
  refused = "";
  return h("form.card.sign", { onsubmit: async (e) => {
    e.preventDefault();
    try {
      await signIn(token.value.trim());
      begin();
    } catch (error) {
      fault.textContent = error.message;
    }
  } }, h("h1", null, "Sign in"), h("p", null, "Enter a token of the service, or open the link that “sandbox console” prints on its host."),
  h("label", null, "Token", token), h("p", null, h("button", { type: "submit" }, "Sign in")), fault);
}

function begin() {
  stop = start();
  watch(() => {
    link.textContent = store.link;
    link.className = store.link.startsWith("lost") ? "bad" : "good";
  });
  show();
  areHosts().then((are) => {
    if (are === clustered) return;
    clustered = are;
    navigate();
  });
}

addEventListener("hashchange", show);
const key = /^#key=([A-Za-z0-9]+)$/.exec(location.hash);
if (key) {
  history.replaceState(null, "", location.pathname); // it can be used only once
  await signIn(key[1]).catch((error) => { refused = error.message; });
}
signedIn() ? begin() : show();
