"""The app of workers that tests kill: its server writes down what it did, and stands still in a call if it is told to."""

from __future__ import annotations

from pathlib import Path

from cortex_plane.worker.tools.app import App
from tests.mcp_servers.lines import hostile


def mortal(folder: Path) -> App:
    app = App("tests")
    hostile(app, folder, timeout=60)
    return app
