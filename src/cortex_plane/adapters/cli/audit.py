from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.adapters.cli.output import AsJson, Limit, show_many
from cortex_plane.adapters.cli.plane import collect, run

app = typer.Typer(no_args_is_help=True, help="The audit trail.")


@app.command("list")
def list_audit(
    session: Annotated[
        UUID | None, typer.Option(help="The chain of a session; the org's own if left out.")
    ] = None,
    limit: Limit = 200,
    as_json: AsJson = False,
) -> None:
    """The entries of a chain, oldest first."""
    found = run(lambda plane: collect(plane.audit.list(session, limit)))
    show_many(found, ["seq", "created_at", "action", "body", "hash"], as_json)
