from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Limit, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.tenancy.model.identities import DeliveryStatus

app = typer.Typer(no_args_is_help=True, help="Deliveries: what was sent to whom, and what did not arrive.")

COLUMNS = [
    "id",
    "status",
    "channel_type",
    "member",
    "address",
    "approval_id",
    "attempts",
    "sent_at",
    "last_error",
]


@app.command("list")
def list_deliveries(
    status: Annotated[DeliveryStatus | None, typer.Option(help="`dead` for what was given up.")] = None,
    approval: Annotated[UUID | None, typer.Option(help="Of this request.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Messages to people, newest first."""
    found = run(lambda plane: collect(plane.deliveries.list(limit, status=status, approval_id=approval)))
    show_many(found, COLUMNS, as_json)


@app.command("show")
def show(delivery_id: UUID, as_json: AsJson = False) -> None:
    """One message: where it goes, how often it was tried, and what went wrong last."""
    show_one(run(lambda plane: plane.deliveries.get(delivery_id)), as_json)


@app.command("resend")
def resend(delivery_id: UUID, as_json: AsJson = False) -> None:
    """Try again what was given up, at once."""
    show_one(run(lambda plane: plane.deliveries.resend(delivery_id)), as_json)
