// What a call would see and reach, and how that differs from another call.
import { call } from "./api.js";
import { h, safe, theirs } from "./dom.js";
import { store, watch } from "./store.js";

const modes = { writable: "writable", readOnly: "read-only", hidden: "hidden", empty: "empty" };

const deepest = 24;

// tree shows what a call sees of /, from explain's places.
export function tree(explanation, other) {
  const top = { name: "/", children: new Map(), path: "/" };
  for (const place of explanation.places) {
    let node = top;
    const parts = place.path.split("/").filter(Boolean);
    if (parts.length > deepest) parts.splice(deepest - 1, parts.length, parts.slice(deepest - 1).join("/")); // a path may have 2,000 components
    for (const part of parts) {
      if (!node.children.has(part)) node.children.set(part, { name: part, children: new Map(), path: (node.path === "/" ? "" : node.path) + "/" + part });
      node = node.children.get(part);
    }
    node.place = place;
  }
  const before = new Map(other?.places.map((p) => [p.path, p.mode]));
  const item = (node) => h("li", null, line(node, other && node.place && before.get(node.path) !== node.place.mode),
    node.children.size ? h("ul.tree", null, [...node.children.values()].map(item)) : null);
  return h("ul.tree", { "aria-label": "What it sees" }, item(top));
}

function line(node, differs) {
  const p = node.place;
  const mode = modes[p?.mode] ?? "shown";
  return h("span", { class: differs ? "line differs" : "line" }, h("code", null, theirs(node.name, 120)), p ? h("span", { class: "mode " + mode }, mode) : null,
    p?.why ? h("span.dim", null, theirs(p.why)) : null, differs ? h("span.warn", null, "(differs)") : null);
}

// picture shows a whole explanation.
export function picture(e, other) {
  return h("div", null,
    h("p", null, h("strong", null, "Network: "), h("span", { class: other && other.network !== e.network ? "differs" : null }, theirs(e.network, 2000))),
    h("p.dim", null, "Works in ", h("code", null, theirs(e.workingDir)), ", HOME is ", h("code", null, theirs(e.home)), ", runtime ", e.runtime, e.warm ? ", its container is warm" : ", its container would have to be made", "."),
    tree(e, other));
}

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

// request makes a request's body. It tells names from presets: a name has a dot or a wildcard.
export function request(tags, names) {
  const all = words(names), body = { permissions: words(tags) };
  const domains = all.filter((n) => /[.*]/.test(n)), managers = all.filter((n) => !/[.*]/.test(n));
  if (domains.length) body.allowedDomains = domains;
  if (managers.length) body.packageManagers = managers;
  return body;
}

// explain's link contains the sandbox, and the tags and names of both choices.
export function explain(main, [id, ...choices]) {
  const sandbox = h("select", { id: "sandbox" });
  const sides = ["First", "Second"].map((text, i) => {
    const t = h("input", { id: "tags" + i, value: choices[2 * i] ?? "", placeholder: "@workspace @network" });
    const n = h("input", { id: "names" + i, value: choices[2 * i + 1] ?? "", placeholder: "example.org node" });
    return { t, n, out: h("div", { role: "status" }), el: h("fieldset.card", null, h("legend", null, text + " choice"), h("div.bar", null, h("label", null, "Tags", t), h("label", null, "Names and presets", n))), ask: () => t.value + n.value !== "" || i === 0 };
  });
  const form = h("form", { onsubmit: (e) => { e.preventDefault(); history.replaceState(null, "", "#/explain/" + [sandbox.value, ...sides.flatMap((s) => [s.t.value, s.n.value])].map(encodeURIComponent).join("/")); run(); } },
    h("div.bar", null, h("label", null, "Sandbox", sandbox), h("button", { type: "submit" }, "Explain")), h("div.columns", null, sides.map((s) => [s.el])));
  const shown = h("div.columns", null, sides.map((s, i) => h("section.card", { "aria-label": ["First", "Second"][i] + " picture" }, s.out)));
  main.append(h("h1", null, "Explain"), h("p.dim", null, "What a call with these grants sees, and what it reaches. A second choice beside it shows what differs."), form, shown);
  let drawn = "";
  const stop = watch(() => {
    const ids = store.sandboxes.map((s) => s.id).join("\n");
    if (ids === drawn) return;
    drawn = ids;
    const chosen = sandbox.value || id;
    sandbox.replaceChildren(...store.sandboxes.map((s) => h("option", { value: s.id }, `${safe(s.id, 80)} (${safe(s.userId, 63)})`)));
    if (store.sandboxes.some((s) => s.id === chosen)) sandbox.value = chosen;
    run();
  });
  async function run() {
    if (!sandbox.value) return;
    const got = await Promise.all(sides.map((s) => s.ask() ? call("POST", `sandboxes/${encodeURIComponent(sandbox.value)}/explain`, request(s.t.value, s.n.value)).catch((e) => e) : null));
    sides.forEach((s, i) => {
      const mine = got[i], other = got[1 - i];
      s.out.replaceChildren(mine === null ? h("p.dim", null, "Enter tags to see the difference.") : mine instanceof Error ? h("p.bad", null, safe(mine.message, 2000)) : picture(mine, other instanceof Error ? null : other));
    });
  }
  return stop;
}
