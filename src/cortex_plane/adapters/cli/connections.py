from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.adapters.cli.output import AsJson, Limit, show_many, show_one
from cortex_plane.adapters.cli.plane import collect, run
from cortex_plane.domain.connections import ConnectionChange, ConnectionDraft
from cortex_plane.domain.messages import InboundMessage

app = typer.Typer(no_args_is_help=True, help="Channel connections: bots, workspaces, mailboxes.")


@app.command()
def create(channel_type: str, name: str, as_json: AsJson = False) -> None:
    """Create a connection, for example `cortex connection create web site`."""
    draft = ConnectionDraft(channel_type=channel_type, name=name)
    show_one(run(lambda plane: plane.connections.create(draft)), as_json)


@app.command("list")
def list_connections(limit: Limit = 50, as_json: AsJson = False) -> None:
    found = run(lambda plane: collect(plane.connections.list(limit)))
    show_many(found, ["id", "channel_type", "name", "disabled_at", "created_at"], as_json)


@app.command()
def show(connection_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.connections.get(connection_id)), as_json)


@app.command()
def rename(connection_id: UUID, name: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.connections.update(connection_id, ConnectionChange(name=name))), as_json)


@app.command()
def enable(connection_id: UUID, as_json: AsJson = False) -> None:
    change = ConnectionChange(enabled=True)
    show_one(run(lambda plane: plane.connections.update(connection_id, change)), as_json)


@app.command()
def disable(connection_id: UUID, as_json: AsJson = False) -> None:
    """Refuse messages over it until it is enabled again."""
    change = ConnectionChange(enabled=False)
    show_one(run(lambda plane: plane.connections.update(connection_id, change)), as_json)


@app.command()
def ingest(
    connection_id: UUID,
    user: Annotated[str, typer.Option(help="The person's id on that channel.")],
    agent: Annotated[str, typer.Option(help="The agent's id or slug.")],
    text: str,
    name: Annotated[str | None, typer.Option(help="The person's name, for the first contact.")] = None,
    idempotency_key: Annotated[str | None, typer.Option()] = None,
    as_json: AsJson = False,
) -> None:
    """Hand over a person's message, as a channel would. Needs a service key."""
    message = InboundMessage(external_user_id=user, agent=agent, text=text, display_name=name)
    show_one(
        run(lambda plane: plane.connections.ingest(connection_id, message, idempotency_key=idempotency_key)),
        as_json,
    )
