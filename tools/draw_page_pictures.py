"""Draws the docs' pictures of the live page, from the event log of a real drill.

    python tools/draw_page_pictures.py                      # does the drill: two of four nodes are killed
    python tools/draw_page_pictures.py --events FILE        # draws a log that is there

A headless Chromium looks at the page at moments of the drill: before the failure, when nodes are lost, during recovery
and when everything is level. Writes page-running.png, page-recovery.png, page-recovery-dark.png, page-phone.png and
page-strip.png (the film strip of one failure). Needs chromium and playwright.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.dashboard.page import LivePage, serve
from holdfast.dashboard.view_model import RunModel
from holdfast_lab.browser import chromium, missing_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DRILL = "incidents --nodes 4 --kill 2 --arrivals 8,16 --batches 60 --rows 300 --fail-at 30 --seed 5 --keep --json"
STRIP = {"width": 940, "height": 640}
WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

Event = dict[str, Any]


def main() -> int:
    """Draw them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "pictures")
    parser.add_argument("--events", type=Path, help="The event log of a run that has lost nodes. Default: of a drill.")
    given = parser.parse_args()
    if (missing := missing_browser()) is not None:
        print(missing, file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    events = read(given.events) if given.events is not None else drilled()
    moments = moments_of(events)
    with chromium() as browser:
        draw(browser, events, moments, given.out)
    return 0


def drilled() -> list[Event]:
    """Do a drill; return the events of its run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast.cli.main", "drill", *DRILL.split(), "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read(Path(folder) / "run" / "run" / "events.jsonl")


def read(file: Path) -> list[Event]:
    """Read an event log."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def moments_of(events: Sequence[Event]) -> list[tuple[str, float]]:
    """Return the moments to show, with captions: before the loss, after it, half-way, and when all is level."""
    model = RunModel()
    for event in events:
        model.take(event)
    recovery = next(one for one in model.recoveries if not one.is_start)
    first, last, ended = recovery.plans[0]["at"], recovery.plans[-1]["at"], recovery.ended
    assert ended is not None, "the log ends before everything is level"
    return [
        ("Before: every partition is healthy", recovery.began - 0.05),
        ("Half of the nodes are gone", first + 0.02),
        ("What fits on the others is back, the rest waits for nodes", (first + last) / 2),
        ("Nodes have come: everything is level again", ended + 1.0),
    ]


def draw(browser: Browser, events: Sequence[Event], moments: Sequence[tuple[str, float]], out: Path) -> None:
    """Draw the strip, and the larger pictures."""
    frames = []
    for caption, moment in moments:
        with shown(events, moment) as url:
            page = opened(browser, url, STRIP)
            frames.append((caption, page.screenshot()))
            page.context.close()
    film(browser, frames, out / "page-strip.png")
    during, after = moments[2][1], moments[3][1]
    with shown(events, after) as url:
        opened(browser, url, WIDE).screenshot(path=out / "page-running.png")
    with shown(events, during) as url:
        opened(browser, url, WIDE).screenshot(path=out / "page-recovery.png", full_page=True)
        opened(browser, url, WIDE, scheme="dark").screenshot(path=out / "page-recovery-dark.png")
        opened(browser, url, PHONE).screenshot(path=out / "page-phone.png")


@contextmanager
def shown(events: Sequence[Event], moment: float) -> Iterator[str]:
    """Serve the page of a log as it was at a moment: that is now, and times are shifted with it."""
    shift = time.time() - moment
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        past = [{**one, "at": one["at"] + shift} for one in events if one["at"] <= moment]
        file.write_text("".join(json.dumps(one) + "\n" for one in past))
        page = LivePage(file, now=lambda: moment + shift)
        server = serve(page, host="127.0.0.1", port=0, token=None)
        try:
            yield server.url
        finally:
            page.close()
            server.close()


def opened(browser: Browser, url: str, size: dict[str, int], scheme: str = "light") -> Page:
    """Open the page in a window of this size."""
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#topology .tile:not(.unknown)")
    page.wait_for_timeout(400)
    return page


def film(browser: Browser, frames: list[tuple[str, bytes]], path: Path) -> None:
    """Put frames side by side, two in a row, each with its caption."""
    page = browser.new_page(viewport={"width": 1560, "height": 900})
    cells = "".join(
        f"<figure><figcaption><b>{number}</b> {caption}</figcaption>"
        f"<img src='data:image/png;base64,{base64.b64encode(picture).decode()}'></figure>"
        for number, (caption, picture) in enumerate(frames, 1)
    )
    page.set_content(
        "<style>body{margin:0;padding:24px;display:grid;grid-template-columns:1fr 1fr;gap:24px;background:#fff;"
        "font:600 19px system-ui,'DejaVu Sans',sans-serif;color:#1c2430}figure{margin:0}figcaption{margin:0 0 8px}"
        "b{color:#5d6673;margin-right:6px}img{width:100%;border:1px solid #cfd1cb;border-radius:8px;display:block}"
        "</style>" + cells
    )
    page.wait_for_timeout(300)
    page.screenshot(path=path, full_page=True)


if __name__ == "__main__":
    sys.exit(main())
