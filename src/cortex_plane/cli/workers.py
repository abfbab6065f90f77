from __future__ import annotations

import typer

from cortex_plane.cli.output import AsJson, show_many
from cortex_plane.cli.plane import run

app = typer.Typer(no_args_is_help=True, help="Workers: the processes that run jobs.")


@app.command("list")
def list_workers(as_json: AsJson = False) -> None:
    """Who is there, newest first. Needs a platform key."""
    found = run(lambda plane: plane.workers.list())
    columns = ["id", "name", "alive", "apps", "concurrency", "started_at", "expires_at", "stopped_at"]
    show_many(found, columns, as_json)
