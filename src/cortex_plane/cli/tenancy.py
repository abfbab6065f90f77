"""`cortex org`, `team`, `key`, `model-key`, `connection` and `delivery`."""

from __future__ import annotations

import getpass
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from typer import Argument, Option

from cortex_plane.cli.plane import run
from cortex_plane.cli.terminal import AsJson, add_command, print_record, print_table, say, show_record
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify import routes as notify_routes
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.tenancy import routes
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import Grantable, KeyDraft, OwnKeyDraft, Provider
from cortex_plane.tenancy.model.identities import Connection, ConnectionChange
from cortex_plane.tenancy.model.orgs import (
    OrgChange,
    OrgDraft,
    OrgSettingsChange,
    PolicyChanges,
    Role,
    TeamChange,
    TeamDraft,
)

org_app = typer.Typer(no_args_is_help=True, help="Orgs: the tenants of a plane.")


@org_app.command("create")
def create_org(
    slug: str,
    name: Annotated[str | None, Option(help="A name for people; the slug if left out.")] = None,
    admin: Annotated[str, Option(help="The name of its first admin.")] = "Admin",
    as_json: AsJson = False,
) -> None:
    """Create an org. Needs a platform key; prints the enrolment code of its first admin once."""
    new = run(lambda plane: plane.orgs.create(OrgDraft(slug=slug, name=name or slug, admin_name=admin)))
    print_record(new if as_json else new.org, as_json)
    if not as_json:
        say("\nIts admin redeems this code once, within 24 hours, with `cortex enrol` or in a browser:")
        say(f"  {new.enrolment.code}")


add_command(org_app, "list", routes.LIST_ORGS, "All orgs of the plane. Needs a platform key.")
add_command(org_app, "show", routes.GET_ORG, "The org of the key.")


@org_app.command("update")
def update_org(
    name: str | None = None,
    guests_may_chat: Annotated[
        bool | None, Option(help="Whether people whom nobody invited may talk with agents.")
    ] = None,
    redact: Annotated[
        list[str] | None,
        Option(
            help="A glob of names of arguments that no mail shows the values of, besides the plane's own; repeat it."
        ),
    ] = None,
    end_paused_after: Annotated[
        int | None, Option(min=0, help="Seconds after which a session that stays PAUSED ends; 0: never.")
    ] = None,
    approval_channel: Annotated[
        list[str] | None,
        Option(help="A channel over which the org asks for approvals; repeat it. `all`: every one that is connected."),
    ] = None,
    policy_changes: Annotated[
        PolicyChanges | None,
        Option(help="Whether a policy file holds as soon as it is applied, or once somebody approves it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the org of the key. What is left out stays as it is."""
    channels = None if not approval_channel else () if approval_channel == ["all"] else tuple(approval_channel)
    change = OrgSettingsChange(
        guests_may_chat=guests_may_chat,
        redact=tuple(redact) if redact else None,
        end_paused_after_seconds=end_paused_after,
        approval_channels=channels,
        policy_changes=policy_changes,
    )
    settings = None if change == OrgSettingsChange() else change
    show_record(lambda plane: plane.orgs.update(OrgChange(name=name, settings=settings)), as_json)


@org_app.command("rotate-secret")
def rotate_org_secret(
    forget: Annotated[
        bool, Option("--forget", help="Links that were sent stop working at once. For a secret that leaked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign links with a new secret. Those that were sent work to their own deadline."""
    show_record(lambda plane: plane.orgs.rotate_secret(forget=forget), as_json)


team_app = typer.Typer(no_args_is_help=True, help="Teams: groups of members, and what agents belong to.")


@team_app.command("create")
def create_team(
    slug: str,
    name: Annotated[str | None, Option(help="A name for people; the slug if left out.")] = None,
    parent: Annotated[str | None, Option(help="The parent team's id or slug.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a team."""
    draft = TeamDraft(slug=slug, name=name or slug, parent=parent)
    show_record(lambda plane: plane.teams.create(draft), as_json)


add_command(team_app, "list", routes.LIST_TEAMS)
add_command(team_app, "show", routes.GET_TEAM)


@team_app.command("rename")
def rename_team(team: str, name: str, as_json: AsJson = False) -> None:
    show_record(lambda plane: plane.teams.update(team, TeamChange(name=name)), as_json)


@team_app.command("delete")
def delete_team(team: str) -> None:
    """Delete a team that nothing uses."""
    run(lambda plane: plane.teams.delete(team))
    say(f"deleted {team}")


key_app = typer.Typer(no_args_is_help=True, help="API keys: your own, and those of services and workers.")


@key_app.command("create")
def create_key(
    name: str,
    service: Annotated[bool, Option("--service", help="For a program; needs --role.")] = False,
    role: Annotated[list[Role] | None, Option("--role", help="The roles of a service key.")] = None,
    permission: Annotated[
        list[Grantable] | None,
        Option("--permission", help="What the service may do by name; may be given several times."),
    ] = None,
    worker: Annotated[bool, Option("--worker", help="For a worker without a database; needs --app.")] = False,
    app: Annotated[
        list[str] | None, Option("--app", help="An app whose jobs the worker may run; may be given several times.")
    ] = None,
    expires_in_days: Annotated[int | None, Option(min=1, max=3650)] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for you, for a service or for a worker, and print it once. Your key ends with the one that you make it with."""
    if service != bool(role) or worker != bool(app) or (service and worker) or (permission and not service):
        raise InvalidInput(
            "A key is for you, for a service (`--service --role ROLE`), or for a worker (`--worker --app APP`).",
            hint="See `cortex key create --help`.",
        )
    if worker:
        draft = KeyDraft(name=name, apps=app, expires_in_days=expires_in_days)
        new = run(lambda plane: plane.keys.create(draft))
    elif service:
        draft = KeyDraft(name=name, roles=role, permissions=permission or [], expires_in_days=expires_in_days)
        new = run(lambda plane: plane.keys.create(draft))
    else:
        own = OwnKeyDraft(name=name, expires_in_days=expires_in_days)
        new = run(lambda plane: plane.keys.create_own(own))
    print_record(new if as_json else new.key, as_json)
    if not as_json:
        say(f"\nThe key, shown once:\n  {new.secret}")


add_command(key_app, "list", routes.LIST_KEYS)
add_command(key_app, "show", routes.GET_KEY)
add_command(
    key_app, "revoke", routes.REVOKE_KEY, "At once and for good, with the keys and browser sessions that came from it."
)


model_key_app = typer.Typer(no_args_is_help=True, help="The org's own keys for model providers.")

MAX_MODEL_KEY = 1000


@model_key_app.command("set")
def set_model_key(provider: Provider, as_json: AsJson = False) -> None:
    """Set the org's own key, read from standard input: an argument would stay in the shell's history."""
    prompt = f"The key for {provider.value} (not shown): "
    key = getpass.getpass(prompt) if sys.stdin.isatty() else sys.stdin.read(MAX_MODEL_KEY)
    if not key.strip():
        raise InvalidInput(
            "There is no key on standard input.", hint=f"Pipe it in: `cortex model-key set {provider.value} < FILE`."
        )
    show_record(lambda plane: plane.model_keys.set(provider, key.strip()), as_json)


add_command(model_key_app, "list", routes.LIST_MODEL_KEYS)
add_command(model_key_app, "show", routes.GET_MODEL_KEY)


@model_key_app.command("remove")
def remove_model_key(provider: Provider) -> None:
    """Within seconds no worker uses it any more."""
    run(lambda plane: plane.model_keys.remove(provider))
    say(f"The org's own key for {provider.value} is removed; the workers' is used, where they have one.")


connection_app = typer.Typer(no_args_is_help=True, help="Channel connections: bots, workspaces, mailboxes, webhooks.")


Values = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="A value that the connection needs, as NAME=VALUE, or NAME=@FILE to read it from a file; repeat it.",
    ),
]
DefaultAgent = Annotated[
    str | None, Option(help="The agent that messages reach where nobody chose another: its id or slug.")
]


@connection_app.command("create")
def create_connection(
    first: Annotated[str, Argument(metavar="CHANNEL|NAME")],
    second: Annotated[str | None, Argument(metavar="[NAME]")] = None,
    channel: Annotated[
        str | None, Option(help="The type of the channel, where only the name stands before it.")
    ] = None,
    url: Annotated[str | None, Option(help="Where the messages of a webhook go.")] = None,
    values: Values = None,
    agent: DefaultAgent = None,
    as_json: AsJson = False,
) -> None:
    """Create a connection: `cortex connection create telegram bot`, which asks for the secrets that it needs, or
    `cortex connection create hook --channel webhook --url https://…`, which prints its secret once.
    `cortex connection channels` lists the channels and the values that they need."""
    if (second is None) == (channel is None):
        raise InvalidInput(
            "A connection has one channel and one name.",
            hint="Say `create CHANNEL NAME` or `create NAME --channel CHANNEL`.",
        )
    kind = channel or first
    config, secret_values = _split_values(kind, _read_values(values), ask=True)
    draft = identities.ConnectionDraft(
        channel_type=kind, name=second or first, url=url, config=config, secrets=secret_values, agent=agent
    )
    show_record(lambda plane: plane.connections.create(draft), as_json, _show_new_connection)


def _read_values(values: list[str] | None) -> dict[str, str]:
    """By name. Raises ``InvalidInput`` for what is no `NAME=VALUE`."""
    by_name: dict[str, str] = {}
    for text in values or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidInput(f"`--set {text}` names no value.", hint="Say `--set NAME=VALUE` or `--set NAME=@FILE`.")
        if value.startswith("@"):
            try:
                value = Path(value[1:]).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                raise InvalidInput(f"{value[1:]} cannot be read: {error}.", hint="Name a text file.") from None
        by_name[name] = value
    return by_name


def _split_values(kind: str, values: dict[str, str], *, ask: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Values and secrets of a channel, as the plane says. ``ask`` for secrets that it needs and nobody gave: an argument would
    stay in the shell's history."""
    if kind == identities.CHANNEL and not values:
        return {}, {}
    served = run(lambda plane: plane.connections.channels())
    wanted = next((channel.fields for channel in served if channel.channel_type == kind), [])
    names = {field.name for field in wanted if field.secret}
    if ask and sys.stdin.isatty():
        for field in wanted:
            if field.secret and field.required and field.name not in values:
                say(field.description)
                values[field.name] = getpass.getpass(f"{field.name} (not shown): ").strip()
    config = {name: value for name, value in values.items() if name not in names}
    return config, {name: value for name, value in values.items() if name in names}


def _show_new_connection(new: identities.NewConnection) -> None:
    _show_connection(Connection(**{field.name: getattr(new, field.name) for field in fields(Connection)}))
    if new.secret is not None:
        say(f"\nThe secret that signs its messages, shown once:\n  {new.secret}")


def _show_connection(connection: Connection) -> None:
    """What is to be done stands below, so that it can be copied."""
    print_record(replace(connection, to_do=[]))
    if connection.to_do:
        say("\nWhat is left to do:")
        for number, step in enumerate(connection.to_do, 1):
            say(f"  {number}. {step}")


@connection_app.command("channels")
def list_channels(as_json: AsJson = False) -> None:
    """The channels that this plane serves, and the values that a connection of each needs."""
    served = run(lambda plane: plane.connections.channels())
    if as_json:
        print_table(served, routes.LIST_CHANNELS.columns, as_json)
        return
    for channel in served:
        say(channel.channel_type)
        for field in channel.fields:
            kind = "secret" if field.secret else "value"
            choices = f" ({', '.join(field.choices)})" if field.choices else ""
            say(f"  {field.name}: {kind}{'' if field.required else ', optional'}{choices}. {field.description}")


add_command(connection_app, "list", routes.LIST_CONNECTIONS)


@connection_app.command("show")
def show_connection(connection_id: UUID, as_json: AsJson = False) -> None:
    """A connection: who it is, how messages get through, and what is left to do."""
    show_record(lambda plane: plane.connections.get(connection_id), as_json, _show_connection)


@connection_app.command("check")
def check_connection(connection_id: UUID, as_json: AsJson = False) -> None:
    """Ask its vendor again who the connection is, and set up there what is missing."""
    show_record(lambda plane: plane.connections.check(connection_id), as_json, _show_connection)


@connection_app.command("update")
def update_connection(
    connection_id: UUID, values: Values = None, agent: DefaultAgent = None, as_json: AsJson = False
) -> None:
    """Replace values and secrets of a connection: its vendor is asked again. `--set NAME=` removes a value."""
    new_values = _read_values(values)
    kind = run(lambda plane: plane.connections.get(connection_id)).channel_type
    config, secret_values = _split_values(kind, new_values, ask=False)
    change = ConnectionChange(
        config={name: value or None for name, value in config.items()} or None,
        secrets=secret_values or None,
        agent=agent,
    )
    show_record(lambda plane: plane.connections.update(connection_id, change), as_json, _show_connection)


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
    external_user: Annotated[
        str,
        Option(help="The name that the system behind the webhook has for them; on GitHub and GitLab their numeric id."),
    ],
    as_json: AsJson = False,
) -> None:
    """Say whose a name in the system behind a webhook is, or a user id on GitHub or GitLab: they decide there from now on."""
    draft = identities.MappingDraft(member_id=member, external_user=external_user)
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
