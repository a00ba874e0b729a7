// The hosts of a cluster.
import { call } from "./api.js";
import { h, safe, table, theirs } from "./dom.js";

// areHosts reports whether there are any, and whether who looks may know.
export const areHosts = () => call("GET", "nodes").then((n) => n.nodes.length > 0, () => false);

export function hosts(main) {
  const all = table("Hosts", ["Host", "Address", "Version", "State", "Users"]), fault = h("p.bad", { role: "alert" });
  main.append(h("h1", null, "Hosts"), fault, h("section.card", null, all.el));
  const look = () => call("GET", "nodes").then(({ nodes }) => {
    fault.textContent = "";
    all.body.replaceChildren(...nodes.map((n) => h("tr", null, h("th", { scope: "row" }, theirs(n.name)), h("td", null, h("code", null, theirs(n.address))), h("td", null, theirs(n.version)),
      h("td", { class: n.draining ? "warn" : "good" }, n.draining ? "draining: takes no new users" : "takes users"), h("td", null, n.users))));
  }, (e) => { fault.textContent = safe(e.message, 500); });
  look();
  const looking = setInterval(look, 5000);
  return () => clearInterval(looking);
}
