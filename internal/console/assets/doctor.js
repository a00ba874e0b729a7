// How the service is, and what waits for a restart.
import { call } from "./api.js";
import { h, safe, table, theirs } from "./dom.js";

export function doctor(main) {
  const body = h("div", { "aria-live": "polite" });
  const again = h("button", { type: "button", onclick: look }, "Check again");
  main.append(h("h1", null, "Doctor"), h("div.bar", null, again), body,
    h("p.dim", null, "On the host, “sandbox doctor” looks further: at the kernel, folders, certificates and the network."));
  async function look() {
    again.disabled = true;
    const health = await call("GET", "health").catch((e) => e);
    again.disabled = false;
    if (health instanceof Error) {
      body.replaceChildren(h("p.bad", null, safe(health.message, 2000)));
      return;
    }
    const found = table("Findings", ["Check", "State", "Found"]);
    const row = (name, level, text) => found.body.append(h("tr", null, h("th", { scope: "row" }, name), h("td", null, h("span", { class: { ok: "good", warning: "warn", fault: "bad" }[level] }, level)), h("td", null, theirs(text, 4000))));
    row("Commands can run", health.problem ? "fault" : "ok", health.problem || `Docker ${health.engine}, runtime ${health.runtime}, image ${health.imageVersion}`);
    for (const warning of health.warnings ?? []) row("Service", "warning", warning);
    const pending = health.settings.pending;
    row("Settings", pending.length ? "warning" : "ok", pending.length ? "these were changed and need a restart: " + pending.join(", ") : "those in force were read at " + new Date(health.settings.loadedAt).toLocaleString());
    row("Version", "ok", health.version);
    body.replaceChildren(h("section.card", null, found.el));
  }
  look();
  return () => {};
}
