"""Where Chromium is, how it is started, and what is said where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
MISSING = "there is no Chromium: `apt-get install chromium-headless-shell`, or set CORTEX_CHROMIUM to its path"


def found() -> str | None:
    given = os.environ.get("CORTEX_CHROMIUM")
    if given:
        return given if Path(given).exists() else None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def tell(reporter: pytest.TerminalReporter) -> None:
    """A line in the summary where browser tests were skipped; also where other processes ran them."""
    skipped = [
        report
        for report in reporter.stats.get("skipped", [])
        if "tests/browser/" in report.nodeid and MISSING in str(report.longrepr)
    ]
    if skipped:
        reporter.write_sep("=", "the browser tests did not run", yellow=True, bold=True)
        reporter.write_line(f"{len(skipped)} tests of the dashboard were skipped, because {MISSING}.")
