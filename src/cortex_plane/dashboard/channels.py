"""Channels: the connections of the org and how they do, and where the visitor is reached.

Secrets are typed into forms and never shown again. Everything works without a script.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from starlette.responses import Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.qr_codes import chat_link, qr_code
from cortex_plane.dashboard.visits import Visit, parse_form, signed_in
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput, NotFound
from cortex_plane.kernel.pages import encode_position
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.notify.model.notifications import TryAgain
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.identities import (
    CHANNEL,
    Connection,
    ConnectionChange,
    ConnectionDraft,
    LinkCode,
    NewConnection,
    ServedChannel,
)
from cortex_plane.tenancy.verbs import account_links, connections, links
from cortex_plane.tenancy.verbs.served_channels import ServedChannels

router = PageRoutes()

CHANNELS = "/channels"
OWN_CHANNELS = "/access/channels"
PAGE = 50
OWN_PAGE = 100
OF_CONFIG, OF_SECRETS = "config.", "secrets."
"""What the names of fields of a form begin with."""
REFUSALS = (InvalidInput, NotFound, Conflict, TryAgain)
"""Shown in the form, such as that there is no agent of this name."""


def served_channels(visit: Visit) -> ServedChannels:
    served: ServedChannels = visit.request.app.state.channels
    return served


async def _channel(visit: Visit, name: str) -> ServedChannel:
    served = await connections.list_channels(visit.db, visit.actor, channels=served_channels(visit))
    channel = next((channel for channel in served if channel.channel_type == name), None)
    if channel is None:
        raise NotFound(f"This plane does not serve {name}.")
    return channel


async def list_connections(visit: Visit) -> Response:
    served = served_channels(visit)
    position = visit.position("connections")
    page = await connections.list_connections(visit.db, visit.actor, position, PAGE, channels=served)
    return visit.page(
        "channels.html",
        items=page.items,
        next_cursor=encode_position("connections", page.next),
        may_write=visit.actor.may(Permission.CONNECTION_WRITE),
        served=await connections.list_channels(visit.db, visit.actor, channels=served),
    )


async def show_new(visit: Visit) -> Response:
    return await _form(visit, visit.request.query_params.get("channel", ""))


async def _form(visit: Visit, name: str, error: CortexError | None = None) -> Response:
    """The form of a new connection, with what was filled in. Secrets are typed again."""
    visit.actor.require(Permission.CONNECTION_WRITE)
    channel = await _channel(visit, name)
    status = 200 if error is None else error.http_status
    return visit.page("channel_new.html", status, channel=channel, form=visit.form, error=error, webhook=CHANNEL)


async def create_connection(visit: Visit) -> Response:
    name = visit.form.get("channel_type", "")
    try:
        fields: dict[str, Any] = {
            "channel_type": name, "name": visit.form.get("name", "").strip(), "url": visit.text("url"),
            "agent": visit.text("agent"), "config": _values(visit, OF_CONFIG), "secrets": _values(visit, OF_SECRETS),
        }  # fmt: skip
        draft = parse_form(ConnectionDraft, fields)
        made = await connections.create_connection(visit.db, visit.actor, draft, channels=served_channels(visit))
    except REFUSALS as error:
        return await _form(visit, name, error)
    if made.secret is None:
        return pages.redirect(f"{CHANNELS}/{made.id}")
    answer = _connection_page(visit, made, made, 201)
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _values(visit: Visit, prefix: str) -> dict[str, str]:
    """The fields that were filled in."""
    values = {name: text.strip() for name, text in visit.form.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): text for name, text in values.items() if text}


async def show_connection(visit: Visit) -> Response:
    return await _page_of(visit, _id(visit))


async def _page_of(visit: Visit, id: UUID, error: CortexError | None = None) -> Response:
    connection = await connections.get_connection(visit.db, visit.actor, id, channels=served_channels(visit))
    return _connection_page(visit, connection, None, 200 if error is None else error.http_status, error)


def _connection_page(
    visit: Visit, connection: Connection, new: NewConnection | None, status: int, error: CortexError | None = None
) -> Response:
    served = {channel.channel_type: channel for channel in served_channels(visit).list_served()}
    channel = served.get(connection.channel_type)
    return visit.page(
        "channel.html",
        status,
        connection=connection,
        channel=channel,
        has_vendor=connection.channel_type in served_channels(visit).vendors,
        may_write=visit.actor.may(Permission.CONNECTION_WRITE),
        secret=new.secret if new else None,
        error=error,
    )


async def change_connection(visit: Visit) -> Response:
    """Values that were typed replace those before; an emptied value is removed, an empty secret stays."""
    id = _id(visit)
    connection = await connections.get_connection(visit.db, visit.actor, id, channels=served_channels(visit))
    typed = {
        name.removeprefix(OF_CONFIG): text.strip() for name, text in visit.form.items() if name.startswith(OF_CONFIG)
    }
    config = {name: text or None for name, text in typed.items() if text != str(connection.config.get(name, ""))}
    name = visit.text("name")
    fields: dict[str, Any] = {
        "name": name if name != connection.name else None, "agent": visit.text("agent"),
        "config": config or None, "secrets": _values(visit, OF_SECRETS) or None,
    }  # fmt: skip
    try:
        change = parse_form(ConnectionChange, fields)
    except InvalidInput as error:
        return await _page_of(visit, id, error)
    return await _changed(visit, id, change)


async def _changed(visit: Visit, id: UUID, change: ConnectionChange) -> Response:
    try:
        await connections.update_connection(visit.db, visit.actor, id, change, None, channels=served_channels(visit))
    except REFUSALS as error:
        return await _page_of(visit, id, error)
    return pages.redirect(f"{CHANNELS}/{id}")


async def enable_connection(visit: Visit) -> Response:
    return await _changed(visit, _id(visit), ConnectionChange(enabled=True))


async def disable_connection(visit: Visit) -> Response:
    return await _changed(visit, _id(visit), ConnectionChange(enabled=False))


async def check_connection(visit: Visit) -> Response:
    id = _id(visit)
    try:
        await connections.check_connection(visit.db, visit.actor, id, channels=served_channels(visit))
    except REFUSALS as error:
        return await _page_of(visit, id, error)
    return pages.redirect(f"{CHANNELS}/{id}")


def _id(visit: Visit) -> UUID:
    return visit.path_id("connection_id", "connection")


router.add(CHANNELS, signed_in(list_connections), "GET")
router.add(CHANNELS, signed_in(create_connection), "POST")
router.add(f"{CHANNELS}/new", signed_in(show_new), "GET")
router.add(f"{CHANNELS}/{{connection_id}}", signed_in(show_connection), "GET")
router.add(f"{CHANNELS}/{{connection_id}}", signed_in(change_connection), "POST")
router.add(f"{CHANNELS}/{{connection_id}}/enable", signed_in(enable_connection), "POST")
router.add(f"{CHANNELS}/{{connection_id}}/disable", signed_in(disable_connection), "POST")
router.add(f"{CHANNELS}/{{connection_id}}/check", signed_in(check_connection), "POST")


async def show_own(visit: Visit, code: LinkCode | None = None) -> Response:
    """Where the visitor is reached, who asked to be linked to them, and a code to link another channel with."""
    mappings = await connections.list_own_mappings(visit.db, visit.actor, None, OWN_PAGE)
    ways = [_way(connection, code) for connection in await links.list_linkable(visit.db, visit.actor)] if code else []
    answer = visit.page(
        "own_channels.html",
        200 if code is None else 201,
        mappings=[mapping for mapping in mappings.items if mapping.verified_at is not None],
        claims=await links.list_own_claims(visit.db, visit.actor),
        accounts=await account_links.list_linkable_accounts(visit.db, visit.actor, channels=served_channels(visit)),
        code=code,
        ways=ways,
    )
    if code is not None:
        answer.headers["Cache-Control"] = "no-store"
    return answer


def _way(connection: links.LinkableConnection, code: LinkCode | None) -> dict[str, Any]:
    """How a code is sent over a connection: where the channel has such links, one that carries it, and the same for a phone."""
    link = chat_link(connection.channel_type, connection.account or "", code.code) if code else None
    return {"connection": connection, "deep_link": link, "qr_code": qr_code(link) if link else None}


async def issue_code(visit: Visit) -> Response:
    return await show_own(visit, await links.issue_link_code(visit.db, visit.actor))


async def confirm_claim(visit: Visit) -> Response:
    await links.confirm_link(visit.db, visit.actor, visit.path_id("mapping_id", "link claim"))
    return pages.redirect(OWN_CHANNELS)


async def refuse_claim(visit: Visit) -> Response:
    await links.refuse_link(visit.db, visit.actor, visit.path_id("mapping_id", "link claim"))
    return pages.redirect(OWN_CHANNELS)


async def unlink(visit: Visit) -> Response:
    await connections.unlink_own(visit.db, visit.actor, visit.path_id("mapping_id", "mapping"))
    return pages.redirect(OWN_CHANNELS)


router.add(OWN_CHANNELS, signed_in(show_own), "GET")
router.add(f"{OWN_CHANNELS}/code", signed_in(issue_code), "POST")
router.add(f"{OWN_CHANNELS}/claims/{{mapping_id}}/confirm", signed_in(confirm_claim), "POST")
router.add(f"{OWN_CHANNELS}/claims/{{mapping_id}}/refuse", signed_in(refuse_claim), "POST")
router.add(f"{OWN_CHANNELS}/{{mapping_id}}/unlink", signed_in(unlink), "POST")
