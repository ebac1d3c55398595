"""A headless Chromium for looking at pages: found on PATH, driven by playwright, with a profile of its own."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Return where Chromium is; None: it is not on PATH."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


def missing_browser() -> str | None:
    """Say what is missing for a browser, in one line; None: nothing."""
    if importlib.util.find_spec("playwright") is None:
        return "no browser: playwright is not installed"
    return None if find_chromium() else f"no browser: none of {', '.join(NAMES)} is on PATH"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
