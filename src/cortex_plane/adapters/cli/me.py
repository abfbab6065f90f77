from __future__ import annotations

import typer

from cortex_plane.adapters.cli.output import AsJson, show_one
from cortex_plane.adapters.cli.plane import run

app = typer.Typer()


@app.command()
def me(as_json: AsJson = False) -> None:
    """Who the key stands for, and what it may do."""
    show_one(run(lambda plane: plane.me()), as_json)
