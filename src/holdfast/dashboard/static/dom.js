// Small helpers for the document: everything that comes from a run becomes text, never markup.
export const byId = (id) => document.getElementById(id);

export function el(name, fields = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(fields)) {
    if (key === "class") made.className = value;
    else if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

export function svg(name, fields = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Rows of a list by key: made once, kept, moved only where their order changed.
export class Rows {
  constructor(parent, make, update) {
    this.parent = parent;
    this.make = make;
    this.update = update;
    this.held = new Map();
  }

  show(items, key) {
    const wanted = new Set();
    let before = null;
    for (const item of items) {
      const id = key(item);
      wanted.add(id);
      let row = this.held.get(id);
      if (row === undefined) {
        row = this.make(item);
        this.held.set(id, row);
      }
      this.update(row, item);
      const place = before === null ? this.parent.firstChild : before.nextSibling;
      if (row !== place) this.parent.insertBefore(row, place);
      before = row;
    }
    for (const [id, row] of this.held) {
      if (!wanted.has(id)) {
        row.remove();
        this.held.delete(id);
      }
    }
  }
}

export function stateTile(state) {
  return el("span", { class: `tile ${tileClass(state)}`, "aria-hidden": "true" });
}

const SHAPES = { down: "lost", running: "healthy", "catching-up": "replaying" };
const KNOWN = new Set(["healthy", "lost", "restoring", "replaying", "tentative", "replica", "parked", "paused"]);

export function tileClass(state) {
  const name = SHAPES[state] ?? state;
  return KNOWN.has(name) ? name : "unknown";
}

export function table(head, rows) {
  const top = el("tr");
  for (const [text, kind] of head) top.append(el("th", { scope: "col", class: kind ?? "" }, text));
  const body = el("tbody");
  for (const row of rows) {
    const line = el("tr");
    row.forEach((cell, index) => line.append(el("td", { class: head[index][1] ?? "" }, cell)));
    body.append(line);
  }
  return el("table", {}, el("thead", {}, top), body);
}

export const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${Number.isInteger(value) ? value : value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function bytes(value) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value} B`;
}

export function share(value) {
  const rounded = Math.round(value * 100);
  return `${rounded === 100 && value < 1 ? 99 : rounded} %`;
}
