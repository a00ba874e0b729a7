// Charts, as SVG. Each has a title for people who cannot see it.
import { h, safe } from "./dom.js";

const width = 600, height = 130, left = 54, bottom = 18;

function frame(label, top, unit, marks) {
  const y = (v) => 6 + (height - bottom - 6) * (1 - v / (top || 1));
  return [y, h("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, h("title", null, label),
    h("text", { x: left, y: height - 4 }, "an hour ago"), h("text", { x: width, y: height - 4, "text-anchor": "end" }, "now"),
    [0, 0.5, 1].map((part) => [h("line.axis", { x1: left, x2: width, y1: y(top * part), y2: y(top * part) }), h("text", { x: 0, y: y(top * part) + 4 }, part ? unit(top * part) : "0")]), marks(y))];
}

// minutes draws bars of the counts of each of the last minutes.
export function minutes(label, counts, refused, unit) {
  const top = Math.max(1, ...counts), step = (width - left) / counts.length;
  return frame(label, top, unit, (y) => counts.map((n, i) => [
    n ? h("rect.bar", { x: left + i * step + 1, width: Math.max(step - 2, 1), y: y(n), height: y(0) - y(n) }) : null,
    refused[i] ? h("rect.refused", { x: left + i * step + 1, width: Math.max(step - 2, 1), y: y(refused[i]), height: y(0) - y(refused[i]) }) : null]))[1];
}

// lines draws series of [name, class, values, dashed]; a null is a break, and a value between two breaks is a dot.
export function lines(label, series, unit) {
  const top = Math.max(1, ...series.flatMap((s) => s[2].filter((v) => v !== null)));
  const x = (i, n) => left + ((width - left) * (i + 0.5)) / n;
  return frame(label, top, unit, (y) => series.map(([, name, values, dashed]) => {
    let path = "", dots = "";
    const there = (i) => (values[i] ?? null) !== null;
    values.forEach((v, i) => {
      if (v === null) return;
      const at = `${x(i, values.length).toFixed(1)} ${y(v).toFixed(1)}`;
      if (there(i - 1) || there(i + 1)) path += (there(i - 1) ? "L" : "M") + at;
      else dots += `M${at}h.1`;
    });
    return [path && h("path", { class: `line ${name}${dashed ? " dash" : ""}`, d: path }), dots && h("path", { class: `line dot ${name}`, d: dots })];
  }))[1];
}

// flow draws who asked for what: links of [from, to, weight, denied], as thick as their weight, stacked at both ends.
export function flow(label, links) {
  const sum = (side) => {
    const all = new Map();
    for (const l of links) all.set(l[side], (all.get(l[side]) ?? 0) + l[2]);
    return [...all].sort((a, b) => b[1] - a[1]);
  };
  const total = links.reduce((n, l) => n + l[2], 0) || 1;
  const gap = 8, room = 150, rows = Math.max(sum(0).length, sum(1).length);
  const tall = room + gap * rows + 20, thick = (n) => Math.max((n / total) * room, 1.5);
  const place = (side) => {
    const at = new Map();
    let y = 10;
    for (const [name, n] of sum(side)) {
      at.set(name, { y, size: thick(n), next: y });
      y += Math.max(thick(n), 14) + gap;
    }
    return at;
  };
  const from = place(0), to = place(1);
  const ends = Math.max(tall, ...[...from.values(), ...to.values()].map((n) => n.y + n.size + 20));
  const paths = [...links].sort((a, b) => from.get(a[0]).y - from.get(b[0]).y || to.get(a[1]).y - to.get(b[1]).y).map(([a, b, n, denied]) => {
    const f = from.get(a), t = to.get(b), w = thick(n);
    const y1 = f.next + w / 2, y2 = t.next + w / 2;
    f.next += w;
    t.next += w;
    return h("path", { class: denied ? "flow denied" : "flow", d: `M170 ${y1}C300 ${y1} 300 ${y2} 420 ${y2}`, "stroke-width": w },
      h("title", null, `${safe(a, 60)} → ${safe(b, 60)}: ${n} ${denied ? "refused" : "allowed"}`));
  });
  const nodes = (at, x, text, anchor, long) => [...at].map(([name, n]) => [h("rect.node", { x, y: n.y, width: 6, height: n.size }),
    h("text", { x: text, y: n.y + Math.max(n.size / 2, 5) + 4, "text-anchor": anchor }, safe(name, long))]);
  return h("svg.flow-picture", { viewBox: `0 0 760 ${ends}`, role: "img", "aria-label": label }, h("title", null, label), paths, nodes(from, 164, 158, "end", 22), nodes(to, 420, 432, "start", 46));
}
