from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Limit, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.jobs.model.effects import CallStatus

app = typer.Typer(no_args_is_help=True, help="Calls of agents that run elsewhere and ask before they act.")


@app.command("list")
def list_calls(
    session: Annotated[UUID | None, typer.Option(help="Only those of this session.")] = None,
    status: Annotated[CallStatus | None, typer.Option()] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Newest first."""
    found = run(lambda plane: collect(plane.calls.list(limit, session_id=session, status=status)))
    show_many(found, ["id", "agent", "tool", "status", "rule", "attempt", "key", "created_at"], as_json)


@app.command("show")
def show(
    call_id: UUID,
    wait: Annotated[float, typer.Option(help="Wait so many seconds for a decision.", min=0, max=60)] = 0,
    as_json: AsJson = False,
) -> None:
    """One call, and what its agent is to do next."""
    show_one(run(lambda plane: plane.calls.get(call_id, wait=wait)), as_json)
