"""A report opened from disk in a real Chromium, with the network off: nothing is asked for, nothing fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.reports.page import make_page
from holdfast.reports.run_report import run_report
from reports.run_logs import QUERIES, event, one_node_lost

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events = sorted(
        [*one_node_lost(), event(35, "parked", query="B[1]", partition="B[1]", batch=33, error=EVIL)],
        key=lambda one: one.at,
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(make_page(run_report(events, QUERIES, name=f"web {EVIL}", directory="/data/web")))
    return path


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_it_opens_without_a_network(browser: Any, report: Path, scheme: str, width: int) -> None:
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": width, "height": 900})
    try:
        page = context.new_page()
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.goto(report.as_uri())
        assert asked == [report.as_uri()], "the file itself, and nothing else"
        assert said == []
        assert page.locator("h1").inner_text() == f"Post-mortem: web {EVIL}"
        assert "1 node lost; 3 of 4 queries went down" in page.locator(".verdict").inner_text()
        assert page.locator("svg").count() == 4
        assert page.locator("svg[role=img][aria-label]").count() == 4
        assert page.locator("svg .bar.down").count() == 3
        assert page.locator("svg .band.outage").count() == 4, "shaded in every plot"
        assert page.locator("ol.plans li").count() == 2
        # By keyboard: the first table alternative opens.
        summary = page.locator("details summary").first
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("details[open] table").first.is_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "nothing sticks out of the page"
    finally:
        context.close()
