"""What tests of the page share: a page in the suite's browser that reports what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open addresses, each in a context of its own; errors of scripts and lines on the console fail the test."""
    problems: list[str] = []
    contexts: list[Any] = []

    def open_page(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda line: problems.append(f"console: {line.text}") if line.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda asked: None if asked.url.startswith((url, "data:")) else problems.append(asked.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
