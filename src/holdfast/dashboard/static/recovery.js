// A recovery as a Gantt that grows while it happens, why its plans took this order, predicted beside measured.
import { byId, bytes, el, number, seconds, setText, share, svg, table } from "/dom.js";

const ROW = 20;
let list = [];
let promises = [];
let planned = [];
let picked = null;
let clock = () => Date.now() / 1000;
let drawn = "";
let ganttAt = -1e9;

export function useClock(now) {
  clock = now;
  byId("recovery-pick").addEventListener("change", (event) => {
    picked = event.target.value === "" ? null : Number(event.target.value);
    draw(true);
  });
  addEventListener("resize", () => draw(true));
}

export function showRecoveries(recoveries, promised, plan) {
  if (recoveries !== undefined) list = recoveries;
  if (promised !== undefined) promises = promised;
  if (plan !== undefined) planned = (plan?.predicted ?? []).filter((each) => each.what === "recovery");
  pickList();
  draw(true);
}

export function isGrowing() {
  const one = current();
  return one !== null && one.ended === null;
}

function current() {
  if (list.length === 0) return null;
  return list.find((one) => one.number === picked) ?? list.find((one) => !one.is_start) ?? list[0];
}

function name(one) {
  const what = one.is_start ? "start" : `recovery ${one.number}`;
  return `${what}, ${new Date(one.began * 1000).toLocaleTimeString()}`;
}

function pickList() {
  const pick = byId("recovery-pick");
  const names = JSON.stringify(list.map(name));
  byId("recovery-pick-label").hidden = list.length < 2;
  if (pick.dataset.shown === names) return;
  pick.dataset.shown = names;
  const wanted = current()?.number;
  pick.replaceChildren(...list.map((one) => el("option", { value: String(one.number), selected: one.number === wanted }, name(one))));
}

export function draw(force = false) {
  const one = current();
  byId("recovery-none").hidden = one !== null;
  byId("recovery").hidden = one === null;
  if (one === null) return;
  const end = one.ended ?? clock();
  setText(byId("recovery-summary"), summary(one, end));
  // Many rows take a while to draw: while they grow, once a second is enough.
  if (one.ended !== null || one.rows.length <= 30 || performance.now() - ganttAt > 1000) {
    ganttAt = performance.now();
    gantt(one, end);
  }
  const key = JSON.stringify([one.number, one.plans, one.ended, promises.length, planned, one.queries, one.first_estimate, one.fetched]);
  if (key !== drawn) {
    drawn = key;
    why(one);
    predicted(one);
    asTable(one);
  }
}

function summary(one, end) {
  const took = seconds(end - one.began);
  const what = one.is_start ? "The driver started" : one.nodes.length ? `Lost ${some(one.nodes)}` : "Partitions were lost";
  const count = `${one.partitions} ${one.partitions === 1 ? "partition" : "partitions"}`;
  const state = one.ended === null ? `${took} so far` : one.how_ended === "level" ? `all level after ${took}` : `${one.how_ended} after ${took}`;
  const low = one.is_start || one.lowest_fidelity >= 1 ? "" : `; lowest fidelity ${share(one.lowest_fidelity)}`;
  return `${what}: ${count}, ${state}${low}.`;
}

const some = (names) => names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");

function gantt(one, end) {
  const place = byId("gantt");
  const width = Math.max(320, place.parentElement.clientWidth);
  const longest = Math.max(8, ...one.rows.map((row) => row.partition.length));
  const left = Math.min(width * 0.34, longest * 7.2 + 14);
  const right = width < 560 ? 12 : 140;
  const span = Math.max(1, end - one.began);
  const x = (at) => left + ((Math.min(at, end) - one.began) / span) * (width - left - right);
  const height = one.rows.length * ROW + 44;
  place.setAttribute("viewBox", `0 0 ${width} ${height}`);
  place.setAttribute("height", height);
  const made = [hatch()];
  const step = niceStep(span / Math.max(2, (width - left - right) / 110));
  for (let t = 0; t <= span + step / 100; t += step) {
    const at = x(one.began + t);
    made.push(svg("line", { class: "grid", x1: at, x2: at, y1: 18, y2: height - 20 }));
    made.push(svg("text", { x: at, y: height - 4, "text-anchor": "middle" }, t === 0 ? "0 s" : seconds(t)));
  }
  one.plans.forEach((plan, index) => {
    const at = x(plan.at);
    made.push(svg("line", { class: "plan", x1: at, x2: at, y1: 14, y2: height - 20 }));
    if (index === 0 || at - x(one.plans[index - 1].at) > 44) {
      made.push(svg("text", { x: at + 3, y: 11 }, one.plans.length > 1 ? `plan ${index + 1}` : "plan"));
    }
  });
  one.rows.forEach((row, index) => {
    const y = 20 + index * ROW;
    made.push(svg("text", { class: "row", x: left - 10, y: y + 13, "text-anchor": "end" }, clip(row.partition, left)));
    let last = null;
    for (const [state, from, to, node] of row.spans) {
      const a = x(from), b = Math.max(a + 1.5, x(to ?? end));
      const rect = svg("rect", { class: `s-${state}`, x: a, y: y + 3, width: b - a, height: ROW - 7 });
      rect.append(svg("title", {}, `${row.partition}: ${state}, ${seconds((to ?? end) - from)}${node ? ` on ${node}` : ""}`));
      made.push(rect);
      last = [b, to, node];
    }
    if (last && width >= 560) {
      const text = last[1] === null ? (last[2] ? `on ${last[2]}` : "waits for a node") : seconds(last[1] - one.began);
      made.push(svg("text", { x: last[0] + 7, y: y + 13 }, text));
    }
  });
  if (one.hidden) made.push(svg("text", { x: left, y: 11, "text-anchor": "end" }, `${one.hidden} more`));
  place.replaceChildren(...made);
}

function clip(text, room) {
  const most = Math.max(6, Math.floor((room - 14) / 6.6));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function hatch() {
  const defs = svg("defs");
  const pattern = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  pattern.append(svg("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }));
  defs.append(pattern);
  return defs;
}

function niceStep(rough) {
  const scale = 10 ** Math.floor(Math.log10(Math.max(rough, 0.01)));
  return scale * ([1, 2, 5].find((one) => one * scale >= rough) ?? 10);
}

function why(one) {
  const place = byId("why");
  if (one.plans.length === 0) {
    place.replaceChildren(el("p", { class: "quiet" }, "No plan yet."));
    return;
  }
  place.replaceChildren(
    ...one.plans.slice(-3).map((plan) => {
      const position = one.plans.indexOf(plan) + 1;
      const all = plan.left_out.length === 0;
      const text = all
        ? `Plan ${position}, after ${seconds(plan.at - one.began)}: everything that is lost fits on the nodes there are, so all of it comes back at once.`
        : `Plan ${position}, after ${seconds(plan.at - one.began)}: room for ${plan.recover.length} of ${plan.recover.length + plan.left_out.length} lost partitions. The queries worth most for what they cost come first.`;
      const rows = plan.reasons.slice(0, 8).map((each) => [
        each.query,
        String(each.priority),
        String(each.partitions),
        each.density === null ? "free" : each.density >= 100 ? number.format(each.density) : each.density.toPrecision(3),
        each.now ? "now" : "waits",
      ]);
      const more = plan.reasons.length > 8 ? el("p", {}, `and ${plan.reasons.length - 8} more queries`) : null;
      const head = [["query", "name"], ["priority", "num"], ["lost", "num"], ["priority per cost", "num"], ["", ""]];
      return el("div", { class: "why-plan" }, el("p", {}, text), rows.length ? table(head, rows) : null, more);
    }),
  );
}

function predicted(one) {
  const made = [];
  if (one.first_estimate && one.ended !== null && one.how_ended === "level") {
    const spread = one.first_estimate.plus_minus === null ? "" : ` ± ${Math.max(1, Math.round(one.first_estimate.plus_minus))} s`;
    made.push(el("p", { class: "quiet" }, `First estimate of this page: ${seconds(one.first_estimate.seconds)}${spread} in all; it took ${seconds(one.ended - one.began)}.`));
  }
  const mine = new Map(promises.filter((each) => each.at >= one.began && (one.ended === null || each.at <= one.ended + 60)).map((each) => [each.query, each]));
  const expected = new Map(planned.map((each) => [each.query, each]));
  const rows = Object.entries(one.queries).slice(0, 12).map(([query, outage]) => {
    const promise = mine.get(query);
    const known = promise ?? expected.get(query);
    const measured = outage.back_at ? seconds(outage.back_at - outage.down_at) : "down";
    const verdict = promise ? (promise.kept === null ? "not promised" : promise.kept ? "kept" : "broken") : "";
    return [query, seconds(known?.predicted), known?.target ? seconds(known.target) : "–", measured, verdict];
  });
  if (rows.length) made.push(table([["query", "name"], ["predicted", "num"], ["target", "num"], ["measured", "num"], ["", ""]], rows));
  if (rows.length && mine.size === 0 && expected.size === 0) made.push(el("p", { class: "quiet" }, "The run has no plan that predicts a time; start it with plan=\"auto\" or targets."));
  if (one.fetched) {
    const places = [["peers", one.fetched.from_peers], ["the durable folder", one.fetched.from_folder], ["the node itself", one.fetched.from_node]];
    const from = places.filter((each) => each[1] > 0).map((each) => `${bytes(each[1])} from ${each[0]}`).join(", ") || "nothing to fetch";
    const times = one.fetched.predicted === null ? "" : ` From fragments in ${seconds(one.fetched.seconds)} on average, predicted ${seconds(one.fetched.predicted)}.`;
    made.push(el("p", { class: "quiet" }, `Snapshots of ${one.fetched.restores} ${one.fetched.restores === 1 ? "partition" : "partitions"}: ${from}.${times}`));
  }
  if (made.length === 0) made.push(el("p", { class: "quiet" }, "No query was down."));
  byId("predicted").replaceChildren(...made);
}

function asTable(one) {
  const rows = one.rows.map((row) => {
    const of = (state) => row.spans.filter((each) => each[0] === state).reduce((sum, each) => sum + ((each[2] ?? clock()) - each[1]), 0);
    const last = row.spans[row.spans.length - 1];
    return [row.partition, seconds(of("lost")), seconds(of("restoring")), seconds(of("catching-up")), last?.[3] ?? "–"];
  });
  byId("gantt-table").replaceChildren(table([["partition", "name"], ["lost", "num"], ["restoring", "num"], ["replaying", "num"], ["node", ""]], rows));
}
