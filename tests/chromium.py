"""The browser that the tests of pages drive."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run", "--mute-audio"]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium, a package of Debian")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start the browser without a window; skip the test if playwright is not installed."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    # As root, chromium starts only without its sandbox.
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, *sandbox])
        yield browser
        browser.close()
