"""`cortex connection` and `delivery`: channels, and what was sent over them."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated
from uuid import UUID

import typer
from typer import Argument, Option

from cortex_plane.cli.terminal import AsJson, add_command, print_record, say, show_record
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify import routes as notify_routes
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.tenancy import routes
from cortex_plane.tenancy.model.identities import (
    Connection,
    ConnectionChange,
    ConnectionDraft,
    MappingDraft,
    NewConnection,
)

connection_app = typer.Typer(no_args_is_help=True, help="Channel connections: bots, workspaces, mailboxes, webhooks.")


@connection_app.command("create")
def create_connection(
    first: Annotated[str, Argument(metavar="CHANNEL|NAME")],
    second: Annotated[str | None, Argument(metavar="[NAME]")] = None,
    channel: Annotated[
        str | None, Option(help="The type of the channel, where only the name stands before it.")
    ] = None,
    url: Annotated[str | None, Option(help="Where the messages of a webhook go.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a connection: `cortex connection create web site`, or
    `cortex connection create hook --channel webhook --url https://…`, which prints its secret once."""
    if (second is None) == (channel is None):
        raise InvalidInput(
            "A connection has one channel and one name.",
            hint="Say `create CHANNEL NAME` or `create NAME --channel CHANNEL`.",
        )
    draft = ConnectionDraft(channel_type=channel or first, name=second or first, url=url)
    show_record(lambda plane: plane.connections.create(draft), as_json, _show_new_connection)


def _show_new_connection(new: NewConnection) -> None:
    print_record(Connection(**{field.name: getattr(new, field.name) for field in fields(Connection)}))
    if new.secret is not None:
        say(f"\nThe secret that signs its messages, shown once:\n  {new.secret}")


add_command(connection_app, "list", routes.LIST_CONNECTIONS)
add_command(connection_app, "show", routes.GET_CONNECTION)


@connection_app.command("rename")
def rename_connection(connection_id: UUID, name: str, as_json: AsJson = False) -> None:
    _update(connection_id, ConnectionChange(name=name), as_json)


def _update(connection_id: UUID, change: ConnectionChange, as_json: bool) -> None:
    show_record(lambda plane: plane.connections.update(connection_id, change), as_json)


@connection_app.command("enable")
def enable_connection(connection_id: UUID, as_json: AsJson = False) -> None:
    _update(connection_id, ConnectionChange(enabled=True), as_json)


@connection_app.command("disable")
def disable_connection(connection_id: UUID, as_json: AsJson = False) -> None:
    """Refuse messages over it until it is enabled again."""
    _update(connection_id, ConnectionChange(enabled=False), as_json)


@connection_app.command("set-url")
def set_connection_url(connection_id: UUID, url: str, as_json: AsJson = False) -> None:
    """Send the messages of a webhook somewhere else. Its secret stays."""
    _update(connection_id, ConnectionChange(url=url), as_json)


add_command(
    connection_app,
    "rotate-secret",
    routes.ROTATE_CONNECTION_SECRET,
    "Print a new secret for a webhook, once. For a day the one before it counts as well: messages are signed with both.",
)


@connection_app.command("test")
def send_ping(connection_id: UUID, as_json: AsJson = False) -> None:
    """Send a signed `ping` to a webhook now, and say what came back. Exits with 1 where it did not arrive."""
    if not show_record(lambda plane: plane.connections.test(connection_id), as_json).delivered:
        raise typer.Exit(1)


@connection_app.command("map")
def map_member(
    connection_id: UUID,
    member: Annotated[UUID, Option(help="The member's id.")],
    external_user: Annotated[str, Option(help="The name that the system behind the webhook has for them.")],
    as_json: AsJson = False,
) -> None:
    """Say whose a name in the system behind a webhook is: they are told there from now on, and decide there."""
    draft = MappingDraft(member_id=member, external_user=external_user)
    show_record(lambda plane: plane.connections.map(connection_id, draft), as_json)


@connection_app.command("ingest")
def ingest_message(
    connection_id: UUID,
    user: Annotated[str, Option(help="The person's id on that channel.")],
    agent: Annotated[str, Option(help="The agent's id or slug.")],
    text: str,
    name: Annotated[str | None, Option(help="The person's name, for the first contact.")] = None,
    idempotency_key: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Hand over a person's message, as a channel would. Needs a service key."""
    message = InboundMessage(external_user_id=user, agent=agent, text=text, display_name=name)
    show_record(
        lambda plane: plane.connections.ingest(connection_id, message, idempotency_key=idempotency_key), as_json
    )


delivery_app = typer.Typer(no_args_is_help=True, help="Deliveries: what was sent to whom, and what did not arrive.")

add_command(
    delivery_app,
    "list",
    notify_routes.LIST_DELIVERIES,
    "Messages to people, newest first.",
    status="`dead` for what was given up.",
    approval="Of this request.",
)
add_command(
    delivery_app,
    "show",
    notify_routes.GET_DELIVERY,
    "One message: where it goes, how often it was tried, and what went wrong last.",
)
add_command(delivery_app, "resend", notify_routes.RESEND_DELIVERY, "Try again what was given up, at once.")
