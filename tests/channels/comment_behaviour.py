"""What channels must do whose cards are comments in shared places, and how their comments are read."""

from __future__ import annotations

import html
import re
from uuid import UUID

import asyncpg
from markdown_it import MarkdownIt

from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.orgs import Role
from tests.channels.behaviour import Arrived, ChannelStage, ChannelSuite
from tests.channels.postbox import connect
from tests.fixtures.people import Person, World, apply_policies

_MARKER = re.compile(r"<!-- cortex-plane ([0-9a-f-]{36}) v\d+ -->")
_ENDED = {"approved", "denied", "expired", "cancelled"}


class CommentSuite(ChannelSuite):
    """Bea decides; the card stands in a place that the policy names."""

    async def _bea(self, world: World, admin: asyncpg.Connection, stage: ChannelStage) -> Person:
        bea = await world.person(Role.APPROVER, name="Bea")
        place = f'{{{stage.channel.channel_type}: "{stage.address("bea")}"}}'
        await apply_policies(world.db, world.admin.actor, f"""
policies:
  - {{name: ask, target: "*", effect: requires_approval, approvers: {{roles: [approver]}}, timeout: 1d, channels: [{place}, email]}}
""")  # fmt: skip
        await stage.connect(world)
        return bea

    def _recipient(self, stage: ChannelStage) -> str:
        return stage.address("bea")


async def connect_vendor(world: World, channel_type: str, config: dict[str, str], secrets: dict[str, str]) -> UUID:
    """A connection as it is stored, without asking the vendor who it is."""
    id = await connect(world, channel_type, "acme")
    async with world.db.transaction(world.org_id) as tx:
        sealed = await tenancy_store.seal_secret(tx, world.db, id, secrets)
        await tx.rows("update channel_connection set config = $2, sealed = $3 where id = $1", id, config, sealed)
    return id


def rendered(body: str) -> str:
    """As HTML, in which the vendors look for mentions and references."""
    return str(MarkdownIt("commonmark", {"html": True}).enable(["strikethrough", "table"]).render(body))


def visible(markup: str) -> str:
    return html.unescape(re.sub(r"<!--.*?-->|<[^>]+>", "", markup, flags=re.DOTALL))


def outside_of_code(body: str) -> str:
    """What a reader sees that is not code: only there mentions, references and links mean something."""
    return visible(re.sub(r"<(pre|code)\b.*?</\1>", " ", rendered(body), flags=re.DOTALL))


def arrived(address: str, body: str) -> Arrived:
    marker = _MARKER.search(body)
    assert marker is not None, body
    markup = rendered(body)
    text = visible(markup)
    first = text.strip().split()[0].lower().rstrip(":")
    return Arrived(
        address=address, thread=marker[1], status=first if first in _ENDED else "pending", text=text, markup=markup,
        urls=re.findall(r'href="([^"]+)"', markup),
    )  # fmt: skip
