// The state of the service and its host, and the settings, with those that wait for a restart.
import { call } from "./api.js";
import { bytes, h, ms, safe, span, table, theirs } from "./dom.js";

const colours = { fault: "bad", warning: "warn", ok: "good", skipped: "dim" }; // in the order in which they are shown

export function doctor(main) {
  const body = h("div", { "aria-live": "polite" }), settings = h("div");
  const again = h("button", { type: "button", onclick: look }, "Check again");
  main.append(h("h1", null, "Doctor"), h("div.bar", null, again), body, settings,
    h("p.dim", null, "On the host, “sandbox doctor” checks more: it makes the service run a command and look up names."));
  async function look() {
    again.disabled = true;
    again.textContent = "Looking …";
    const [health, report] = await Promise.all([call("GET", "health").catch((e) => e), call("GET", "doctor").catch((e) => e)]);
    again.disabled = false;
    again.textContent = "Check again";
    if (health instanceof Error) {
      body.replaceChildren(h("p.bad", null, safe(health.message, 2000)));
      return;
    }
    const found = table("Findings", ["Check", "State", "Found"]), levels = Object.keys(colours), rows = [];
    const row = (name, level, text, remedy) => rows.push({ level, el: h("tr", null, h("th", { scope: "row" }, safe(name, 60)), h("td", null, h("span", { class: colours[level] }, level)),
      h("td", null, theirs(text, 4000), remedy ? h("div.dim", null, "To do: ", theirs(remedy, 4000)) : null)) });
    row("Commands can run", health.problem ? "fault" : "ok", health.problem || `Docker ${health.engine}, runtime ${health.runtime}, image ${health.imageVersion}`);
    for (const warning of health.warnings ?? []) row("Service", "warning", warning);
    const pending = health.settings.pending;
    row("Settings", pending.length ? "warning" : "ok", pending.length ? "these were changed and need a restart: " + pending.join(", ") : "the settings in force were read at " + new Date(health.settings.loadedAt).toLocaleString());
    row("Version", "ok", health.version);
    // A caller who acts for some users only learns nothing about the host.
    if (report instanceof Error && report.status !== 403) row("Host", "skipped", report.message);
    for (const f of report.findings ?? []) row(f.check, f.level, f.found, f.remedy);
    rows.sort((a, b) => levels.indexOf(a.level) - levels.indexOf(b.level)).forEach((r) => found.body.append(r.el));
    const worst = rows[0].level, bad = rows.filter((r) => r.level === worst).length;
    body.replaceChildren(h("p", null, h("strong", { class: colours[worst] }, worst === "ok" ? `All ${bad} checks are fine.` : `${bad} ${worst}${bad > 1 ? "s" : ""} among ${rows.length} checks.`)), h("section.card", null, found.el));
    if (report.settings) settings.replaceChildren(h("section.card", null, h("h2", null, "Settings in force"), values(report.settings)));
  }
  look();
  return () => {};
}

function values(settings) {
  const all = table("Settings", ["Setting", "Value", "When changed"]);
  for (const s of settings) {
    all.body.append(h("tr", null, h("th", { scope: "row" }, h("code", null, s.key)), h("td", null, h("code", null, theirs(s.value, 600)), unit(s.key, s.value)),
      h("td", { class: s.pending ? "warn" : "dim" }, s.pending ? "waits for a restart" : s.live ? "takes effect at once" : "needs a restart")));
  }
  return all.el;
}

// unit says in a larger unit what is a number of milliseconds or of bytes.
function unit(key, value) {
  if (!/^\d{4,}$/.test(value)) return "";
  if (/Ms$/.test(key)) return ` (${value < 60000 ? ms(Number(value)) : span(Number(value))})`;
  return /Bytes$/.test(key) ? ` (${value < 2 ** 20 ? (value / 1024).toFixed(0) + " KiB" : bytes(Number(value))})` : "";
}
