// Elements, and text that others have chosen. Nothing here turns a string into markup.

const svgs = new Set(["svg", "g", "path", "rect", "text", "title", "desc", "line", "polyline"]);

// h makes an element. Attributes whose name begins with "on" are listeners; null and false are left out.
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const svg = svgs.has(tag);
  const el = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") el[key] = value;
    else el.setAttribute(key, value === true ? "" : value);
  }
  el.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
  return el;
}

const most = 240;
// Characters that change a line's direction or are invisible are shown as a sign, as are marks piled up over other lines.
const unseen = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?<=\p{M}{4})\p{M}+/gu;
const sign = (c) => (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\u2423");

// visible returns a text of several lines with such signs.
export const visible = (text) => text.replace(unseen, (c) => (c === "\n" || c === "\t" ? c : sign(c)));

// safe returns a string that a tenant has chosen, cut and with every character visible.
export function safe(text, limit = most) {
  text = String(text ?? "");
  const cut = text.length > limit ? Array.from(text.slice(0, limit * 2)).slice(0, limit).join("") + "…" : text;
  return cut.replace(unseen, sign);
}

// theirs returns an element with such a string, whose text direction does not affect anything outside.
export const theirs = (text, limit) => h("bdi", null, safe(text, limit));

// keyed updates an element's children to match items: an item with the same key keeps its element.
export function keyed(parent, items, key, make, update) {
  const there = parent.keyed ?? (parent.keyed = new Map());
  const wanted = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    if (wanted.has(k)) continue;
    wanted.add(k);
    let el = there.get(k);
    if (!el) there.set(k, (el = make(item)));
    update?.(el, item);
    if (el === place) place = place.nextSibling;
    else parent.insertBefore(el, place);
  }
  for (const [k, el] of there) {
    if (wanted.has(k)) continue;
    el.remove();
    there.delete(k);
  }
}

const rowHeight = 30;

// list is a table that has only its visible rows. columns are [name, width, value, make]: value is what a cell shows of an item, and
// make, if given, makes its content; otherwise it is text. A cell whose value has not changed is left alone.
export function list(label, columns) {
  const body = h("div.list", { tabindex: "0", role: "rowgroup" });
  const layout = columns.map((c) => c[1]).join(" ");
  const space = h("div", { role: "presentation" });
  body.append(space);
  const heads = h("div.heads", { role: "row" }, columns.map((c) => h("span", { role: "columnheader" }, c[0])));
  heads.style.gridTemplateColumns = layout;
  // So wide that no column is cut off: what is wider than the page is scrolled, heads and rows together.
  const least = columns.reduce((n, c) => n + Number(/[\d.]+(?=rem)/.exec(c[1])[0]), columns.length);
  heads.style.minWidth = body.style.minWidth = least + "rem";
  const el = h("div.scroll", { role: "table", "aria-label": label }, h("div", { role: "rowgroup" }, heads), body);
  let items = [], height = 0, planned = false;
  new ResizeObserver(() => { height = body.clientHeight; draw(true); }).observe(body);
  const rows = new Map(); // by their index
  const fresh = () => {
    const row = h("div", { role: "row" }, columns.map(() => h("span", { role: "cell" })));
    row.style.gridTemplateColumns = layout;
    row.shown = [];
    body.append(row);
    return row;
  };
  const fill = (row, item) => columns.forEach(([, , value, make], i) => {
    const now = String(value(item) ?? "");
    if (row.shown[i] === now) return;
    row.shown[i] = now;
    if (make) row.childNodes[i].replaceChildren(make(item));
    else row.childNodes[i].textContent = now;
  });
  // draw fills all visible rows, or only those that have become visible by scrolling.
  function draw(all) {
    planned = false;
    const first = Math.max(Math.floor(body.scrollTop / rowHeight) - 4, 0);
    const last = Math.min(first + Math.ceil(height / rowHeight) + 8, items.length);
    const free = [];
    for (const [i, row] of rows) if (i < first || i >= last) { rows.delete(i); free.push(row); }
    for (let i = first; i < last; i++) {
      let row = rows.get(i);
      if (!row) {
        row = free.pop() ?? fresh();
        row.style.transform = `translateY(${i * rowHeight}px)`;
        row.setAttribute("aria-rowindex", i + 2);
        rows.set(i, row);
      } else if (!all) continue;
      fill(row, items[i]);
    }
    for (const row of free) row.remove();
  }
  body.addEventListener("scroll", () => {
    if (!planned) requestAnimationFrame(() => draw(false));
    planned = true;
  }, { passive: true });
  body.addEventListener("pointerover", (e) => { // the title shows what is cut off
    const cell = e.target.closest("[role=cell]");
    if (cell) cell.title = cell.scrollWidth > cell.clientWidth ? cell.textContent : "";
  }, { passive: true });
  let long = -1;
  return {
    el,
    set(next) {
      items = next;
      if (long !== items.length) {
        long = items.length;
        space.style.height = long * rowHeight + "px";
        el.setAttribute("aria-rowcount", long + 1);
      }
      draw(true);
    },
  };
}

// table is a small table, with all of its rows.
export function table(label, heads) {
  const body = h("tbody");
  const el = h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, h("table", null, h("thead", null, h("tr", null, heads.map((t) => h("th", { scope: "col" }, t)))), body));
  return { el, body };
}

// confirm asks once; it resolves to whether the answer was yes.
export function confirm(text, yes) {
  const dialog = document.getElementById("ask");
  return new Promise((resolve) => {
    const answer = (value) => () => { dialog.close(); resolve(value); };
    dialog.replaceChildren(h("p", { id: "ask-text" }, text), h("div.bar", null,
      h("button.danger", { type: "button", onclick: answer(true) }, yes), h("button", { type: "button", onclick: answer(false) }, "Cancel")));
    dialog.onclose = () => { if (!dialog.open) resolve(false); }; // also with its page; an event of the question before may come late
    dialog.showModal();
  });
}

// closeDialog leaves an open question unanswered: its page has gone.
export const closeDialog = () => document.getElementById("ask").close();

export const clock = (time) => new Date(time).toTimeString().slice(0, 8);
export const cores = (n) => (n === null || n === undefined ? "–" : n.toFixed(2));
export const bytes = (n) => (n === null || n === undefined ? "–" : n >= 2 ** 30 ? (n / 2 ** 30).toFixed(1) + " GiB" : (n / 2 ** 20).toFixed(0) + " MiB");
// span is a time in its largest unit.
export const span = (n) => {
  const s = Math.max(Math.round(n / 1000), 0);
  return s < 60 ? s + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
};
export const ms = (n) => (n >= 1000 ? (n / 1000).toFixed(n >= 10000 ? 0 : 1) + " s" : n >= 100 ? n.toFixed(0) + " ms" : n.toFixed(1) + " ms");
