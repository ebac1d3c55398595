// What if: asks the server which queries a loss would take down, and marks the partitions.
import { byId, el, seconds, share, table } from "/dom.js";
import { markAsked } from "/topology.js";

let priorities = [];
let shown = "";

export function showChoices(nodes, queries) {
  if (queries) priorities = [...new Set(queries.map((one) => one.priority))];
  if (!nodes) return;
  const up = nodes.filter((one) => one.state === "up");
  const key = JSON.stringify(up.map((one) => [one.name, one.domain]));
  if (key === shown) return;
  shown = key;
  const place = byId("whatif-nodes");
  const checked = new Set([...place.querySelectorAll("input:checked")].map((one) => one.value));
  place.replaceChildren(
    ...up.slice(0, 60).map((one) => el("label", {}, el("input", { type: "checkbox", value: one.name, checked: checked.has(one.name) }), one.name)),
  );
  const domains = [...new Set(up.map((one) => one.domain).filter(Boolean))].sort();
  byId("whatif-domain-label").hidden = domains.length === 0;
  byId("whatif-domain").replaceChildren(el("option", { value: "" }, "–"), ...domains.map((one) => el("option", { value: one }, one)));
}

export function start() {
  byId("whatif-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const place = byId("whatif");
    const asked = question();
    if (asked === null) {
      place.replaceChildren(el("p", { class: "quiet" }, "Choose a node, a number of nodes, or a rack."));
      return;
    }
    place.replaceChildren(el("p", { class: "quiet" }, "Planning…"));
    try {
      const answer = await fetch(`/api/what-if?${asked}`);
      const found = await answer.json();
      if (answer.ok) show(found);
      else fail(found.error);
    } catch {
      fail("the page does not answer");
    }
  });
}

function question() {
  const asked = new URLSearchParams();
  const nodes = [...byId("whatif-nodes").querySelectorAll("input:checked")].map((one) => one.value);
  const count = byId("whatif-count").value, domain = byId("whatif-domain").value;
  if (nodes.length) asked.set("lose", nodes.join(","));
  else if (count) asked.set("lose", count);
  else if (domain) asked.set("domain", domain);
  else return null;
  const plan = byId("whatif-form").elements.plan.value;
  asked.set("plan", plan);
  if (plan === "auto") {
    const within = byId("whatif-seconds").value, overhead = byId("whatif-overhead").value;
    const least = Math.min(...priorities);
    if (within && Number.isFinite(least)) asked.set("recovery", `${least}:${within}`);
    if (overhead) asked.set("overhead", String(overhead / 100));
  }
  return asked;
}

function fail(text) {
  markAsked([]);
  byId("whatif").replaceChildren(el("p", { class: "notice warn" }, String(text)));
}

function show(found) {
  markAsked(found.partitions);
  const down = found.down;
  const waits = down.filter((one) => one.waits_for_nodes).length;
  const longest = Math.max(0, ...down.map((one) => one.seconds ?? 0));
  const text = down.length === 0
    ? `Without ${found.nodes.join(", ")} no query is down.`
    : `Without ${found.nodes.join(", ")}: ${down.length} of ${found.queries} queries down, fidelity ${share(found.fidelity)}` +
      (waits === down.length ? ", and they wait for nodes." : `, back within ${seconds(longest)}${waits ? `; ${waits} wait for nodes` : ""}.`);
  const under = `Under ${found.plan}: a checkpoint every ${seconds(found.interval_seconds)}, ${found.backups} backups, ` +
    `fragments ${found.fragments.data} + ${found.fragments.parity}. ${found.partitions.length} of ${found.total} partitions are lost; they are outlined above.`;
  const rows = down.slice(0, 20).map((one) => [
    one.query, String(one.priority), one.waits_for_nodes ? "waits for nodes" : seconds(one.seconds), share(one.fidelity),
  ]);
  byId("whatif").replaceChildren(
    el("p", { class: "big" }, text),
    el("p", { class: "quiet" }, under),
    found.survives ? "" : el("p", { class: "notice warn" }, "More nodes are lost than the code survives: the last durable checkpoint is restored."),
    rows.length ? table([["query", "name"], ["priority", "num"], ["back after", "num"], ["fidelity meanwhile", "num"]], rows) : "",
    down.length > 20 ? el("p", { class: "quiet" }, `and ${down.length - 20} more`) : "",
  );
}
