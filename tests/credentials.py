"""Tokens and links as messages carry them, made without a message."""

from __future__ import annotations

import html
import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx

from cortex_plane.approvals.model.approvals import Approval, Choice
from cortex_plane.approvals.verbs import approvals, credentials
from cortex_plane.tenancy.model.access import Actor
from tests.people import Person, World

PUBLIC = "http://plane"
CALLBACK = "/api/v1/approvals/callback"


async def token_for(
    world: World, approval_id: UUID, to: Actor, *, expires_at: datetime | None = None, **changes: Any
) -> str:
    """As a message to this person would carry it, about the request as it is now."""
    approval = (await approvals.get_approval(world.db, world.admin.actor, approval_id)).approval
    assert to.user_account_id is not None
    given = {"version": approval.version, "input_hash": approval.input_hash, **changes}
    async with world.db.transaction(world.org_id) as tx:
        return await credentials.mint(
            tx,
            approval_id=approval_id,
            member_id=to.user_account_id,
            notification_id=None,
            expires_at=expires_at or approval.deadline or approval.requested_at + timedelta(days=1),
            **given,
        )


async def links_for(
    world: World, approval: Approval, to: Person | None = None, channel: str = "email"
) -> dict[Choice, str]:
    member_id = (to or world.admin).actor.user_account_id
    assert member_id is not None
    assert approval.deadline is not None
    async with world.db.transaction(world.org_id) as tx:
        return await credentials.links(
            world.db,
            tx,
            approval_id=approval.id,
            member_id=member_id,
            channel=channel,
            deadline=approval.deadline,
            public_url=PUBLIC,
        )


async def link_for(
    world: World, approval: Approval, choice: Choice = Choice.APPROVED, to: Person | None = None
) -> str:
    return (await links_for(world, approval, to))[choice]


async def by_token(
    http: httpx.AsyncClient, token: str, decision: str = "approved", **more: Any
) -> httpx.Response:
    return await http.post("/v1/approvals/decide", json={"token": token, "decision": decision, **more})


def form_of(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of the one form of a page; nothing where there is none."""
    forms = re.findall(r"<form[^>]*>(.*?)</form>", page.text, re.DOTALL)
    assert len(forms) <= 1, page.text
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', forms[0]) if forms else []
    return {name: html.unescape(value) for name, value in found}


async def press(http: httpx.AsyncClient, link: str, **changes: str) -> httpx.Response:
    """Open the link, and press its button."""
    page = await http.get(link)
    return await http.post(link, data={**form_of(page), **changes})
