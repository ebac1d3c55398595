// The live page: takes what changed from the server's stream, and patches only that, at most once per frame.
import { bytes, byId, el, number, Rows, seconds, setAttribute, setText, share, stateTile, svg, tileClass } from "/dom.js";
import { changeTiles, showLegend, showTopology, useClock as topologyClock } from "/topology.js";
import { draw, isGrowing, showRecoveries, useClock as recoveryClock } from "/recovery.js";
import { showChoices, start as startWhatIf } from "/what_if.js";

const MOST_QUERIES = 200;
const view = {};
let pending = null;
let offset = 0;
let spokenAt = 0;
let scheduled = false;
let frozenAt = null;
const now = () => (frozenAt ?? Date.now() / 1000 + offset);
topologyClock(now);
recoveryClock(now);
startWhatIf();

// -- the stream --------------------------------------------------------------------------------------------------------

function listen() {
  const stream = new EventSource("/api/stream");
  stream.onmessage = (event) => {
    const message = JSON.parse(event.data);
    offset = message.now - Date.now() / 1000;
    if (message.whole) pending = { sections: {}, partitions: {} };
    pending ??= { sections: {}, partitions: {} };
    const { partitions, ...sections } = message.changed;
    Object.assign(pending.sections, sections);
    if (partitions) Object.assign(pending.partitions, partitions);
    setLink("live", "live");
    schedule();
  };
  stream.onerror = () => setLink("broken", "not connected, trying again");
}

function setLink(state, text) {
  setAttribute(byId("link"), "data-state", state);
  setText(byId("link-text"), text);
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    if (pending === null) return;
    const { sections, partitions } = pending;
    pending = null;
    apply(sections, partitions);
  });
}

function apply(sections, partitions) {
  Object.assign(view, sections);
  frozenAt = view.run?.ended ? view.run.ended.at : null;
  if (sections.operators) showTopology(sections.operators, partitions);
  changeTiles(partitions);
  if (sections.states || sections.replicas) showLegend(view.states, view.replicas);
  if (sections.headline || sections.run) showHeadline();
  if (sections.notices) showNotices(sections.notices);
  if (sections.parked) showParked(sections.parked);
  if (sections.queries) showQueries(sections.queries);
  if (sections.nodes) showNodes(sections.nodes);
  if ("ring" in sections) showRing(sections.ring);
  if (sections.recoveries || sections.promises || "plan" in sections) showRecoveries(sections.recoveries, sections.promises, sections.plan);
  if (sections.happened) showHappened(sections.happened);
  if (sections.nodes || sections.queries) showChoices(sections.nodes, sections.queries);
  showFigures();
}

setInterval(() => {
  if (document.hidden) return;
  showFigures();
  if (isGrowing()) draw();
}, 500);

// -- headline ----------------------------------------------------------------------------------------------------------

const PHASES = {
  running: "Running", recovering: "Recovering", starting: "Starting", ended: "Ended", failed: "Failed",
  gone: "Driver gone", unknown: "Waiting",
};

function showHeadline() {
  const { headline, run } = view;
  if (!headline || !run) return;
  setAttribute(byId("headline"), "data-level", headline.level);
  setText(byId("phase"), PHASES[run.state] ?? run.state);
  setText(byId("headline-text"), headline.text);
  setText(byId("application"), run.application ?? "a run");
  const about = [run.id, run.claim ? `driver ${run.claim}` : null].filter(Boolean).join(", ");
  setText(byId("about"), about);
  document.title = `${headline.live}/${headline.partitions} ${run.application ?? ""} · Holdfast`;
  const at = Date.now();
  if (at - spokenAt > 5000 && byId("spoken").textContent !== headline.text) {
    spokenAt = at;
    setText(byId("spoken"), headline.text);
  }
}

const figures = new Rows(
  byId("figures"),
  (one) => el("div", {}, el("dt", {}, one.name), el("dd")),
  (row, one) => {
    const text = `${one.value}|${one.note ?? ""}`;
    if (row.dataset.shown === text) return;
    row.dataset.shown = text;
    row.lastChild.replaceChildren(one.value, one.note ? el("small", {}, ` ${one.note}`) : "");
  },
);

function showFigures() {
  const { headline, run, checkpoint, queries } = view;
  if (!headline || !run) return;
  const found = [{ name: "partitions live", value: `${headline.live}`, note: `of ${headline.partitions}` }];
  if (headline.fidelity !== null) found.push({ name: "fidelity", value: share(headline.fidelity) });
  if (headline.recovery) {
    const spread = headline.recovery.plus_minus === null ? "by the plan" : `± ${Math.max(1, Math.round(headline.recovery.plus_minus))} s`;
    found.push({ name: "full recovery in", value: `${Math.max(1, Math.round(headline.recovery.seconds))} s`, note: spread });
  }
  if (headline.target !== null) found.push({ name: "target", value: seconds(headline.target) });
  const down = (queries ?? []).filter((one) => one.state === "down" || one.state === "parked").length;
  if (queries) found.push({ name: "queries up", value: `${queries.length - down}`, note: `of ${queries.length}` });
  const first = (queries ?? []).find((one) => one.latency !== null);
  if (first) found.push({ name: `latency, priority ${first.priority}`, value: seconds(first.latency), note: `median ${seconds(first.latency_median)}` });
  found.push({ name: "checkpoint age", value: checkpoint ? seconds(Math.max(0, now() - checkpoint.at)) : "none yet", note: checkpoint ? `batch ${checkpoint.batch}` : null });
  found.push({ name: "batch", value: number.format(Math.max(0, run.logged)), note: run.rows_per_second ? `${number.format(run.rows_per_second)} rows/s` : null });
  if (run.quarantined) found.push({ name: "quarantined rows", value: number.format(run.quarantined) });
  if (run.unread) found.push({ name: "unread records", value: number.format(run.unread) });
  figures.show(found, (one) => one.name.replace(/\d+/g, ""));
  figures.held.forEach((row, key) => {
    const one = found.find((each) => each.name.replace(/\d+/g, "") === key);
    if (one) setText(row.firstChild, one.name);
  });
}

function showNotices(notices) {
  const place = byId("notices");
  place.hidden = notices.length === 0;
  place.replaceChildren(
    ...notices.slice(0, 8).map((one) =>
      el("div", { class: `notice ${one.level}`, role: one.level === "bad" ? "alert" : "status" },
        el("p", {}, el("strong", {}, one.title), one.text ? `. ${one.text}` : ""),
        el("p", { class: "remedy" }, one.remedy)),
    ),
  );
}

// -- queries and nodes -------------------------------------------------------------------------------------------------

const queryRows = new Rows(
  byId("queries").tBodies[0],
  (one) => {
    const row = el("tr", {}, el("td", { class: "name" }), el("td", { class: "num" }), el("td"), el("td", { class: "num" }), el("td", { class: "wide" }), el("td", { class: "num" }));
    row.cells[0].append(one.id, one.output && one.output !== one.id.replace(/\[\d+\]$/, "") ? el("small", {}, one.output) : "");
    row.cells[2].append(el("span", { class: "state" }, stateTile(one.state), el("span")));
    const line = svg("svg", { class: "spark", viewBox: "0 0 110 22", "aria-hidden": "true" });
    line.append(svg("polyline"), svg("circle", { r: 2 }));
    row.cells[4].append(line);
    return row;
  },
  (row, one) => {
    const key = JSON.stringify(one);
    if (row.dataset.shown === key) return;
    row.dataset.shown = key;
    const cells = row.cells;
    setText(cells[1], String(one.priority));
    const state = cells[2].firstChild;
    state.firstChild.className = `tile ${tileClass(one.state)}`;
    const how = one.state === "down" && one.lost ? `, ${one.lost} of ${one.partitions}` : one.state === "tentative" && one.fidelity !== null ? `, fidelity ${share(one.fidelity)}` : "";
    setText(state.lastChild, one.state + how);
    setText(cells[3], one.latency === null ? "–" : seconds(one.latency));
    spark(cells[4].firstChild, one.latencies);
    setText(cells[5], one.lag ? `${number.format(one.lag)}` : "0");
  },
);

function spark(place, values) {
  const most = Math.max(0.001, ...values);
  const points = values.map((one, index) => [2 + (index * 104) / Math.max(1, values.length - 1), 20 - (one / most) * 17]);
  place.firstChild.setAttribute("points", points.length > 1 ? points.map((one) => one.map((v) => v.toFixed(1)).join(",")).join(" ") : "");
  const last = points[points.length - 1];
  place.lastChild.setAttribute("visibility", last ? "visible" : "hidden");
  if (last) {
    place.lastChild.setAttribute("cx", last[0].toFixed(1));
    place.lastChild.setAttribute("cy", last[1].toFixed(1));
  }
}

function showQueries(queries) {
  queryRows.show(queries.slice(0, MOST_QUERIES), (one) => one.id);
  byId("queries-more").hidden = queries.length <= MOST_QUERIES;
  setText(byId("queries-more"), `and ${queries.length - MOST_QUERIES} more of lower priority: see /api/view`);
}

const nodeRows = new Rows(
  byId("nodes"),
  () => el("li", {}, el("div", { class: "row1" }, el("b"), el("span")), el("div", { class: "bar" }, el("i"), el("u"))),
  (row, one) => {
    const key = JSON.stringify(one);
    if (row.dataset.shown === key) return;
    row.dataset.shown = key;
    row.dataset.state = one.state;
    row.classList.toggle("gone", one.state !== "up");
    setText(row.firstChild.firstChild, one.name + (one.domain ? ` (${one.domain})` : ""));
    const copies = one.replicas ? `, ${one.replicas} ${one.replicas === 1 ? "replica" : "replicas"}` : "";
    const many = `${one.partitions} ${one.partitions === 1 ? "partition" : "partitions"}${copies}`;
    const known = one.load !== null && one.capacity;
    const used = one.load !== null && one.load < 0.005 ? "under 0.01" : one.load?.toFixed(2);
    const load = known ? `, ${used} of ${Number(one.capacity.toFixed(2))} cores` : one.load !== null ? `, ${used} cores` : "";
    const text = one.state === "up" ? `${many}${load}` : `${one.state}${one.why ? `: ${one.why}` : ""}`;
    setText(row.firstChild.lastChild, text);
    const bar = row.lastChild;
    const part = known ? one.load / one.capacity : 0;
    bar.classList.toggle("over", known && one.bound !== null && part > one.bound);
    bar.firstChild.style.width = `${Math.min(100, part * 100).toFixed(1)}%`;
    bar.lastChild.style.left = `${((one.bound ?? 1) * 100).toFixed(1)}%`;
    bar.lastChild.hidden = one.bound === null || one.bound === undefined || one.state !== "up";
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", known ? `load ${share(part)} of its cores, bound ${share(one.bound ?? 1)}` : "load not measured yet");
  },
);

function showNodes(nodes) {
  const up = nodes.filter((one) => one.state === "up");
  const gone = nodes.filter((one) => one.state !== "up").sort((a, b) => b.since - a.since);
  nodeRows.show([...up.slice(0, 100), ...gone.slice(0, 8)], (one) => one.name);
  const more = gone.length > 8 || up.length > 100 ? `, ${Math.max(0, up.length - 100) + Math.max(0, gone.length - 8)} not shown` : "";
  setText(byId("nodes-title"), nodes.length ? `Nodes, ${up.length} up${gone.length ? `, ${gone.length} gone` : ""}${more}` : "Nodes");
}

function showRing(ring) {
  byId("ring-card").hidden = ring === null;
  if (ring === null) return;
  const place = byId("ring");
  if (ring.problem) {
    place.replaceChildren(el("p", { class: "quiet" }, `The ring does not answer: ${ring.problem}`));
    return;
  }
  const bar = el("div", { class: "redundancy", role: "img" });
  const words = [];
  for (const [left, count] of Object.entries(ring.redundancy).sort((a, b) => a[0] - b[0])) {
    const piece = el("i", { class: left < 0 ? "below" : left === "0" ? "none" : "" });
    piece.style.flexGrow = String(count);
    bar.append(piece);
    words.push(left < 0 ? `${count} cannot be read` : `${count} survive ${left} more`);
  }
  bar.setAttribute("aria-label", words.join(", "));
  const silent = ring.silent.length ? `, ${ring.silent.length} silent` : "";
  const code = ring.code ? `, coded ${ring.code[0]} + ${ring.code[1]}` : "";
  place.replaceChildren(
    el("p", {}, `${ring.peers.length} agents${silent}; ${number.format(ring.states)} snapshots, ${bytes(ring.bytes)}${code}`),
    ring.states ? bar : "",
    el("p", { class: "quiet" }, ring.states ? `Losses of agents that snapshots still survive: ${words.join("; ")}.${ring.to_rebuild ? ` ${ring.to_rebuild} fragments to rebuild.` : ""}` : "No snapshot is stored yet."),
  );
}

// -- parked ------------------------------------------------------------------------------------------------------------

function showParked(parked) {
  byId("parked-card").hidden = parked.length === 0;
  const had = document.activeElement?.dataset?.query;
  byId("parked").replaceChildren(
    ...parked.map((one) => {
      const button = el("button", { type: "button" }, "Resume");
      button.dataset.query = one.query;
      button.setAttribute("aria-label", `Resume ${one.query}`);
      const says = el("span", { class: "quiet", role: "status" });
      button.addEventListener("click", () => resume(one.query, button, says));
      if (had === one.query) requestAnimationFrame(() => button.focus());
      return el("div", { class: "parked-one" },
        el("p", {}, el("b", {}, one.query), ` by ${one.partition} at batch ${one.batch}, after ${one.attempts} ${one.attempts === 1 ? "attempt" : "attempts"} `, says),
        button,
        el("pre", {}, String(one.error ?? "")),
        one.row ? el("p", { class: "quiet" }, "The first row that it cannot take: ", el("code", {}, one.row)) : null);
    }),
  );
}

async function resume(query, button, says) {
  const token = sessionStorage.getItem("holdfast-token") ?? (await askToken());
  if (!token) return;
  button.disabled = true;
  try {
    const answer = await fetch("/api/resume", {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify({ query }),
    });
    const found = await answer.json();
    if (answer.ok) {
      sessionStorage.setItem("holdfast-token", token);
      setText(says, "resume requested; the driver reads it within seconds");
      return;
    }
    if (answer.status === 401) sessionStorage.removeItem("holdfast-token");
    setText(says, found.error);
  } catch {
    setText(says, "the page does not answer");
  }
  button.disabled = false;
}

function askToken() {
  const dialog = byId("token-dialog");
  byId("token").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok" ? byId("token").value.trim() : ""), { once: true });
  });
}

// -- events ------------------------------------------------------------------------------------------------------------

function showHappened(list) {
  byId("happened").replaceChildren(
    ...[...list].reverse().map((one) => el("li", {}, el("time", {}, new Date(one.at * 1000).toLocaleTimeString([], { hour12: false })), el("span", {}, one.text))),
  );
}

listen();
