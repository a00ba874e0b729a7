// The hosts of a cluster.
import { call } from "./api.js";
import { h, safe, table, theirs } from "./dom.js";

// areHosts reports whether there are any, and whether who looks may know.
export const areHosts = () => call("GET", "nodes").then((n) => n.nodes.length > 0, () => false);

export function hosts(main) {
  const all = table("Hosts", ["Host", "Address", "Version", "State", "Users"]), fault = h("p.bad", { role: "alert" });
  main.append(h("h1", null, "Hosts"), fault, h("section.card", null, all.el));
  const state = (n, silent) => {
    if (n.lost) return ["bad", "lost: the others do not hear of it"];
    if (silent.includes(n.name)) return ["bad", "does not answer"];
    return n.draining ? ["warn", "draining: takes no new users"] : ["good", "takes users"];
  };
  let asking = false;
  const look = async () => {
    if (asking) return;
    asking = true;
    try {
      const [{ nodes }, { unanswered = [] }] = await Promise.all([call("GET", "nodes"), call("GET", "egress/decisions?limit=1")]); // which asks all of them
      fault.textContent = "";
      all.body.replaceChildren(...nodes.map((n) => {
        const [colour, text] = state(n, unanswered);
        return h("tr", null, h("th", { scope: "row" }, theirs(n.name)), h("td", null, h("code", null, theirs(n.address))), h("td", null, theirs(n.version)),
          h("td", { class: colour }, text), h("td", null, n.users));
      }));
    } catch (e) {
      fault.textContent = safe(e.message, 500);
    }
    asking = false;
  };
  look();
  const looking = setInterval(look, 5000);
  return () => clearInterval(looking);
}
