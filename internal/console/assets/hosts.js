// The hosts of a cluster, and what happens to them and to their users.
import { call } from "./api.js";
import { clock, h, list, safe, table, theirs } from "./dom.js";
import { store, watch } from "./store.js";

// areHosts reports whether there are hosts that the signed-in user may see. It asks until the service has answered.
export const areHosts = () => call("GET", "nodes").then((n) => n.nodes.length > 0,
  (error) => (error.status < 500 ? false : new Promise((resolve) => setTimeout(resolve, 2000)).then(areHosts)));

const states = {
  up: ["good", "takes users"], draining: ["warn", "draining: takes no new users"], lost: ["bad", "lost: it has no lease, and may still run something"],
  fencing: ["bad", "cluster.fenceCommand runs against it"], away: ["warn", "away: nothing of it runs"],
  fenced: ["bad", "fenced: it has no lease any more, and what it did for users has ended"],
};

const happened = (e) => (e.node ? states[e.node.state] : e.seat.from ? ["warn", `holds ${e.userId} now, taken over from ${e.seat.from}`] : ["dim", `holds ${e.userId} now`]);

export function hosts(main) {
  const all = table("Hosts", ["Host", "Address", "Version", "State", "Users"]), fault = h("p.bad", { role: "alert" });
  const lately = list("Recent events", [
    ["Time", "6rem", (e) => clock(e.time)],
    ["Host", "minmax(8rem, 1fr)", (e) => e.node?.name ?? e.seat.node, (e) => theirs(e.node?.name ?? e.seat.node)],
    ["Event", "minmax(16rem, 4fr)", (e) => happened(e)[1], (e) => h("span", { class: happened(e)[0] }, theirs(happened(e)[1]))],
  ]);
  main.append(h("h1", null, "Hosts"), fault, h("section.card", null, all.el), h("section.card", null, h("h2", null, "Recent events"), lately.el));
  const state = (n, silent) => (n.lost ? states.lost : silent.includes(n.name) ? ["bad", "does not answer"] : states[n.draining ? "draining" : "up"]);
  let asking = false, known = null;
  const look = async () => {
    if (asking) return;
    asking = true;
    try {
      const [{ nodes }, { unanswered = [] }] = await Promise.all([call("GET", "nodes"), call("GET", "egress/decisions?limit=1")]); // this one asks all hosts
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
  const stop = watch(() => {
    if (known === store.hosts) return;
    if (known) look(); // something has just changed
    known = store.hosts;
    lately.set(known);
  });
  return () => { clearInterval(looking); stop(); };
}
