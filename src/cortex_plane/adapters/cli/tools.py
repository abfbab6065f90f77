from __future__ import annotations

import typer

from cortex_plane.adapters.cli.output import AsJson, show_many
from cortex_plane.adapters.cli.plane import run

app = typer.Typer(no_args_is_help=True, help="Tools: what agents may call, as workers published it.")


@app.command("list")
def list_tools(as_json: AsJson = False) -> None:
    """The newest version of each tool."""
    found = run(lambda plane: plane.tools.list())
    columns = ["app", "name", "risk", "read_only", "on_uncertain", "timeout_seconds", "description"]
    show_many(found, columns, as_json)
