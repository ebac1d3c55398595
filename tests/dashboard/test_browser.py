"""The page in a real headless Chromium: what it shows, keyboard, token, hostile names, a thousand partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dashboard.made_up import Log, topology, write
from holdfast.dashboard.page import LivePage, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKEN = "only-a-test-has-this-token"
HOSTILE = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'


class Shown:
    """A log that a page shows while the test adds to it."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self.log = Log(document, at=time.time() - 60)
        self.file, self.written = folder / "events.jsonl", 0
        self.resumed: list[str] = []
        self.page = LivePage(self.file, resume=self._resume, what_if=self._what_if)
        self.server = serve(self.page, host="127.0.0.1", port=0, token=TOKEN)
        self.flush()

    def _resume(self, query: str) -> dict[str, Any]:
        self.resumed.append(query)
        return {"queries": [query], "request": 0}

    def _what_if(self, asked: Any) -> dict[str, Any]:
        down = [{"query": "out[0]", "priority": 2, "seconds": 4.0, "waits_for_nodes": False, "fidelity": 0.5}]
        return {
            "nodes": asked["lose"].split(","), "partitions": ["m[1]"], "fidelity": 0.75, "survives": True, "down": down,
            "queries": 2, "total": 8, "plan": HOSTILE, "interval_seconds": 5.0, "backups": 0,
            "fragments": {"data": 2, "parity": 1},
        }  # fmt: skip

    def flush(self) -> None:
        write(self.file, self.log.events[self.written :])
        self.written = len(self.log.events)

    def close(self) -> None:
        self.page.close()
        self.server.close()


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    document = topology(("s", 2), ("m", 4), ("out", 2))
    document["operators"][1]["cost"] = 0.001  # as measured: a thousandth of a core
    one = Shown(tmp_path, document)
    yield one
    one.close()


def text_of(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def test_a_failure_as_it_is_shown(shown: Shown, opened: Callable[..., Page]) -> None:
    page = opened(shown.server.url)
    page.wait_for_selector("#phase:has-text('Starting')")
    shown.log.started()
    shown.flush()
    page.wait_for_selector("#phase:has-text('Running')")
    assert page.locator("#topology .tile.healthy").count() == 8
    shown.log.after(5).lose("node-1", "m[1]", "m[3]").place({"m[1]": "node-0"}, left=["m[3]"])
    shown.flush()
    page.wait_for_selector("#headline-text:has-text('6 of 8 partitions, fidelity')")
    assert page.locator("#topology .tile.lost").get_attribute("aria-label") == "m[3], lost"
    assert page.locator("#topology .tile.restoring").get_attribute("aria-label") == "m[1], restoring, on node-0"
    shown.log.add("fragments", partition="m[1]", fetched=1, needed=4)
    shown.flush()
    page.wait_for_selector("[aria-label='m[1], restoring 1 of 4 fragments, on node-0']")
    page.wait_for_selector("#gantt .s-lost")
    assert "room for 1 of 2 lost partitions" in text_of(page, "#why")
    assert "1,000" in text_of(page, "#why"), "priority per cost"
    assert "Waiting for nodes" in text_of(page, "#notices")
    shown.log.after(1).restored("m[1]").after(1).level("m[1]").place({"m[3]": "node-0"})
    shown.log.after(1).restored("m[3]").after(1).level("m[3]")
    shown.flush()
    page.wait_for_selector("#phase:has-text('Running')")
    assert "all level after 4 s" in text_of(page, "#recovery-summary")
    assert page.locator("#notices").is_hidden()


def test_what_the_plan_predicts_stands_beside_an_outage_from_its_first_moment(
    shown: Shown, opened: Callable[..., Page]
) -> None:
    predicted = [{"what": "recovery", "query": f"out[{n}]", "predicted": 8.0, "target": 30.0} for n in range(2)]
    shown.log.add("plan", targets={"survive": 1}, predicted=predicted, interval_seconds=5.0)
    shown.log.started().after(5).lose("node-1", "out[1]").place({"out[1]": "node-0"})
    shown.flush()
    page = opened(shown.server.url)
    page.wait_for_selector("#predicted td")
    assert text_of(page, "#predicted tbody").split() == ["out[1]", "8", "s", "30", "s", "down"]
    assert "has no plan" not in text_of(page, "#predicted")
    shown.log.after(1).restored("out[1]").after(1).level("out[1]")
    shown.log.add("published", partition="out[1]", batch=3, rows=1)
    fields = {"predicted": 8.0, "target": 30.0, "measured": 2.0, "nodes_lost": 1, "covered": True, "kept": True}
    shown.log.add("promise", what="recovery", query="out[1]", **fields)
    shown.flush()
    page.wait_for_selector("#predicted :text('kept')")


def test_a_query_that_goes_on_is_tentative_with_its_fidelity(shown: Shown, opened: Callable[..., Page]) -> None:
    shown.log.started().after(5).lose("node-0", "s[0]")
    shown.log.add("tentative", query="out[0]", since=5, fidelity=0.5, without=["s[0]"])
    shown.log.add("published", partition="out[0]", batch=5, rows=2, tentative=True, fidelity=0.5)
    shown.flush()
    page = opened(shown.server.url)
    page.wait_for_selector("#topology .tile.tentative")
    assert page.locator("#topology .tile.tentative").count() == 5
    assert page.locator("[data-id='out[0]']").get_attribute("aria-label") == "out[0], tentative, on node-0"
    assert "tentative, fidelity 50 %" in text_of(page, "#queries")
    assert "1 query tentative" in text_of(page, "#headline-text")
    shown.log.add("tentative-ended", query="out[0]", problem=None)
    shown.flush()
    page.wait_for_selector("#topology .tile.tentative", state="detached")


def test_keys_reach_everything(shown: Shown, opened: Callable[..., Page]) -> None:
    shown.log.started()
    shown.flush()
    page = opened(shown.server.url)
    page.wait_for_selector(".tile.healthy")

    def focused() -> str:
        return str(page.evaluate("document.activeElement.dataset.id ?? document.activeElement.id"))

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert focused() == "s[0]"
    page.keyboard.press("Tab")
    assert focused() == "m[0]", "one stop per operator"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert focused() == "m[1]"
    assert text_of(page, "#detail").startswith("m[1] healthy, on node-")
    page.keyboard.press("End")
    assert focused() == "m[3]"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert focused() == "m[3]", "it is remembered where one was"
    named = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, summary")].filter(
             (one) => !one.closest("dialog") &&
               !(one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim())
           ).map((one) => one.outerHTML)"""
    )
    assert named == [], "every control has a name"


def test_a_parked_query_is_resumed_with_the_token(shown: Shown, opened: Callable[..., Page]) -> None:
    shown.log.started().add(
        "parked",
        query="out[1]",
        partition="m[2]",
        batch=4,
        error=f"ValueError: {HOSTILE}",
        since=1.0,
        attempts=3,
        row='s: {"n": 13}',
    )
    shown.flush()
    page = opened(shown.server.url)
    page.wait_for_selector("#parked pre")
    assert text_of(page, "#parked pre") == f"ValueError: {HOSTILE}"
    assert text_of(page, "#parked code") == 's: {"n": 13}'
    page.get_by_role("button", name="Resume out[1]").click()
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#parked :text('resume requested')")
    assert shown.resumed == ["out[1]"]
    shown.log.add("resumed", query="out[1]")
    shown.flush()
    page.wait_for_selector("#parked-card", state="hidden")


def test_hostile_names_do_nothing(shown: Shown, opened: Callable[..., Page]) -> None:
    shown.log.document["name"] = "made-up"
    shown.log.run("two")
    shown.log.events[-1] |= {"application": HOSTILE, "run": HOSTILE, "outputs": {"out": HOSTILE}}
    shown.log.started()
    shown.log.add("node-arrived", nodes=[HOSTILE], capacity={HOSTILE: 1.0})
    shown.log.state("m[0]", "running", "lost", HOSTILE)
    shown.log.state("m[1]", "running", HOSTILE, HOSTILE)
    shown.log.add("planned", recover=["m[0]"], placement={"m[0]": HOSTILE}, left_out=[], queries=[HOSTILE], priority=1)
    shown.log.add("cycle-failed", number=1, claim=1, epoch=1, problem=HOSTILE)
    shown.log.add(
        "parked", query=HOSTILE, partition=HOSTILE, batch=1, error=HOSTILE, since=1.0, attempts=1, row=HOSTILE
    )
    shown.flush()
    page = opened(shown.server.url)
    page.wait_for_selector("#parked-card:visible")
    page.get_by_label(HOSTILE, exact=True).check()
    page.get_by_role("button", name="Show what would be down").click()
    page.wait_for_selector("#whatif .big")
    assert HOSTILE in text_of(page, "#whatif")
    assert text_of(page, "#application") == HOSTILE
    assert page.locator("main img").count() == 0
    assert page.locator("main script").count() == 0
    assert "Holdfast" in page.title()
    assert page.title() not in ("1", "2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_dark_and_small_screens(shown: Shown, opened: Callable[..., Page], scheme: str) -> None:
    shown.log.started().after(5).lose("node-1", "m[1]").place({"m[1]": "node-0"})
    shown.log.add("published", partition="out[0]", batch=4, rows=1, latency=0.35)
    shown.log.add("tentative", query="out[0]", since=5, fidelity=0.78, without=["m[1]"])
    shown.log.add("published", partition="out[0]", batch=5, rows=1, tentative=True, fidelity=0.78)
    shown.flush()
    page = opened(shown.server.url, color_scheme=scheme, viewport={"width": 360, "height": 740})
    page.wait_for_selector(".tile.restoring")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off on a phone"
    behind = page.locator("#queries th").last.bounding_box()
    assert behind is not None
    assert behind["x"] + behind["width"] <= 360, "nor is the last column of the queries"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(18, 22, 28)") == (scheme == "dark")


def test_a_thousand_partitions_change_and_only_they_are_touched(tmp_path: Path, opened: Callable[..., Page]) -> None:
    shown = Shown(tmp_path, topology(("s", 200), ("m", 400), ("n", 380), ("out", 20)))
    try:
        from playwright.sync_api import expect

        shown.log.started(20)
        shown.flush()
        page = opened(shown.server.url)
        page.wait_for_selector(".tile.healthy")
        assert page.locator("#topology .tile").count() == 1000
        page.evaluate(
            """() => {
                 window.seen = {tiles: 0, built: 0, frames: [], last: performance.now()};
                 new MutationObserver((list) => {
                   for (const one of list) {
                     if (one.type === "attributes" && one.attributeName === "class") window.seen.tiles += 1;
                     if (one.type === "childList") window.seen.built += one.addedNodes.length;
                   }
                 }).observe(document.getElementById("topology"), {subtree: true, childList: true, attributes: true});
                 const tick = (at) => {
                   window.seen.frames.push(at - window.seen.last); window.seen.last = at; requestAnimationFrame(tick);
                 };
                 requestAnimationFrame(tick);
               }"""
        )
        updates = 300
        over = threading.Event()

        def write_updates() -> None:
            for number in range(updates):
                name = shown.log.names[number * 7 % 1000]
                shown.log.state(name, "running", "catching-up", "node-1", "behind")
                shown.flush()
                over.wait(0.01)

        writer = threading.Thread(target=write_updates)
        writer.start()
        writer.join()
        changed = len({shown.log.names[number * 7 % 1000] for number in range(updates)})
        expect(page.locator("#topology .tile.replaying")).to_have_count(changed, timeout=60_000)
        found = page.evaluate("window.seen")
        assert found["built"] == 0, "no tile is made again"
        assert found["tiles"] == changed, "each tile that changed is touched once, and no other"
        page.close()
    finally:
        shown.close()
