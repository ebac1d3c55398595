// The topology: a card per operator, a tile per partition. Built once per topology; afterwards only tiles change.
import { byId, bytes, el, seconds, setAttribute, svg, tileClass } from "/dom.js";

const SHOWN = { running: "healthy", "catching-up": "replaying" };
const ORDER = ["healthy", "replaying", "restoring", "lost", "parked", "paused", "tentative", "replica", "unknown"];
const tiles = new Map();
const cards = new Map();
let shape = "";
let edges = [];
let chosen = null;
let rows = {};
let clock = () => Date.now() / 1000;

const shown = (row) => (row.tentative && row.state in SHOWN ? "tentative" : SHOWN[row.state] ?? row.state);

export function useClock(now) {
  clock = now;
}

export function showTopology(operators, partitions) {
  const wanted = JSON.stringify(operators);
  if (wanted === shape) return;
  shape = wanted;
  const place = byId("topology");
  place.replaceChildren();
  tiles.clear();
  cards.clear();
  edges = [];
  const levels = [];
  for (const one of operators) (levels[one.level] ??= []).push(one);
  for (const level of levels.filter(Boolean)) {
    const column = el("div", { class: "level" });
    for (const one of level) column.append(card(one));
    place.append(column);
  }
  for (const one of operators) {
    for (const input of one.inputs) edges.push([input.from, one.id, input.partitioning]);
  }
  place.prepend(svg("svg", { "aria-hidden": "true", id: "edges" }));
  changeTiles(partitions);
  requestAnimationFrame(drawEdges);
}

function card(one) {
  const size = one.parallelism > 96 ? "crowd" : one.parallelism > 24 ? "many" : "";
  const grid = el("div", { class: `tiles ${size}`, role: "group", "aria-label": `partitions of ${one.id}` });
  for (let index = 0; index < one.parallelism; index++) {
    const id = `${one.id}[${index}]`;
    const tile = el("button", { class: "tile unknown", type: "button", tabIndex: index === 0 ? 0 : -1 });
    tile.dataset.id = id;
    tiles.set(id, tile);
    grid.append(tile);
  }
  grid.addEventListener("keydown", move);
  grid.addEventListener("focusin", (event) => choose(event.target.dataset.id));
  grid.addEventListener("click", (event) => event.target.dataset.id && choose(event.target.dataset.id));
  grid.addEventListener("mouseover", (event) => event.target.dataset.id && choose(event.target.dataset.id));
  const from = one.inputs.map((input) => `${input.from} (${input.partitioning})`).join(", ");
  const kind = one.inputs.length === 0 ? "source, " : one.joins ? "joins, " : one.output ? "output, " : "";
  const made = el(
    "div",
    { class: "operator", title: from ? `reads ${from}` : "a source" },
    el("div", { class: "name" }, one.id),
    el("div", { class: "facts" }, `${kind}${one.parallelism} ${one.parallelism === 1 ? "partition" : "partitions"}`),
    from ? el("span", { class: "sr" }, `reads ${from}`) : null,
    grid,
  );
  cards.set(one.id, made);
  return made;
}

function move(event) {
  const all = [...event.currentTarget.children];
  const at = all.indexOf(document.activeElement);
  if (at < 0) return;
  const perRow = Math.max(1, all.filter((one) => one.offsetTop === all[0].offsetTop).length);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow, Home: -at, End: all.length - 1 - at };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const next = all[Math.min(all.length - 1, Math.max(0, at + steps[event.key]))];
  all[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

export function changeTiles(changed) {
  for (const [id, row] of Object.entries(changed)) {
    const tile = tiles.get(id);
    if (tile === undefined || row === null) continue;
    rows[id] = row;
    const state = shown(row);
    const asked = tile.classList.contains("asked") ? " asked" : "";
    const name = `tile ${tileClass(state)}${row.replica?.level ? " doubled" : ""}${asked}`;
    if (tile.className !== name) tile.className = name;
    const part = row.state === "restoring" ? row.fragments : null;
    if (part) tile.style.setProperty("--part", String(part[0] / Math.max(1, part[1])));
    else tile.style.removeProperty("--part");
    const progress = part ? ` ${part[0]} of ${part[1]} fragments` : "";
    const replica = row.replica ? `, replica ${row.replica.level ? "" : "being built "}on ${row.replica.node}` : "";
    setAttribute(tile, "aria-label", `${id}, ${state}${progress}${row.node ? `, on ${row.node}` : ""}${replica}`);
  }
  if (chosen !== null && chosen in changed) describe();
}

export function markAsked(ids) {
  const wanted = new Set(ids);
  for (const [id, tile] of tiles) tile.classList.toggle("asked", wanted.has(id));
}

function choose(id) {
  if (!id) return;
  chosen = id;
  describe();
}

function describe() {
  const row = rows[chosen];
  if (row === undefined) return;
  const parts = [shown(row)];
  if (row.node) parts.push(`on ${row.node}`);
  if (row.since) parts.push(`for ${seconds(Math.max(0, clock() - row.since))}`);
  if (row.fragments) parts.push(`${row.fragments[0]} of ${row.fragments[1]} fragments`);
  if (row.batch !== null && row.batch !== undefined && row.batch >= 0) parts.push(`restored at batch ${row.batch}`);
  if (row.replica) parts.push(`replica ${row.replica.level ? "" : "being built "}on ${row.replica.node}`);
  if (row.fetched) {
    const whole = row.fetched.from_peers + row.fetched.from_folder + row.fetched.from_node;
    parts.push(`fetched ${bytes(whole)} in ${seconds(row.fetched.seconds)}`);
  }
  byId("detail").replaceChildren(el("b", {}, chosen), ` ${parts.join(", ")}`);
}

export function showLegend(states, replicas) {
  const wanted = ORDER.filter((state) => states[state]);
  for (const state of Object.keys(states)) if (!wanted.includes(state) && states[state]) wanted.push(state);
  const text = JSON.stringify([wanted.map((state) => [state, states[state]]), replicas]);
  const place = byId("legend");
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  place.replaceChildren(
    ...wanted.map((state) =>
      el("li", {}, el("span", { class: `tile ${tileClass(state)}`, "aria-hidden": "true" }), el("span", {}, el("b", {}, String(states[state])), ` ${state}`)),
    ),
    ...(replicas?.level || replicas?.building
      ? [el("li", {}, el("span", { class: "tile healthy doubled", "aria-hidden": "true" }), el("span", {}, el("b", {}, String(replicas.level)), ` with a replica${replicas.building ? `, ${replicas.building} being built` : ""}`))]
      : []),
  );
}

function drawEdges() {
  const place = byId("edges");
  const box = byId("topology");
  if (!place || getComputedStyle(place).display === "none") return;
  place.setAttribute("width", box.scrollWidth);
  place.setAttribute("height", box.scrollHeight);
  const origin = box.getBoundingClientRect();
  place.replaceChildren();
  for (const [from, to] of edges) {
    const a = cards.get(from)?.getBoundingClientRect();
    const b = cards.get(to)?.getBoundingClientRect();
    if (!a || !b) continue;
    const x1 = a.right - origin.left, y1 = a.top + a.height / 2 - origin.top;
    const x2 = b.left - origin.left, y2 = b.top + b.height / 2 - origin.top;
    const bend = Math.max(20, (x2 - x1) / 2);
    place.append(svg("path", { d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}` }));
  }
}

addEventListener("resize", () => requestAnimationFrame(drawEdges));
