"""Confirmations of tools."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import ConfirmationDraft, ToolConfirmation, ToolVersion
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import once_only, require_found, verb


@verb(Permission.TOOL_CONFIRM)
async def confirm(
    db: Database, actor: Actor, draft: ConfirmationDraft, once: IdempotencyKey | None = None
) -> ToolConfirmation:
    """In place of what was confirmed about the tool before."""
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            return await _make(tx, actor, draft)

        id, _ = await once_only(tx, actor, "tool_confirmations.confirm", once, make)
        return require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


async def _make(tx: Transaction, actor: Actor, draft: ConfirmationDraft) -> UUID:
    # The org's row first: two who confirm at once take turns.
    await agents_store.raise_confirmation_version(tx)
    version = await _looked_at(tx, draft)
    replaced = await agents_store.revoke_confirmation(tx, version.app, version.name, actor.name)
    id = new_id()
    await agents_store.insert_confirmation(
        tx, id, app=version.app, tool_name=version.name, digest=version.digest, read_only=draft.read_only,
        idempotent=draft.idempotent, risk=draft.risk, note=draft.note, confirmed_by=actor.name,
        confirmed_by_id=actor.identity,
    )  # fmt: skip
    fact = Fact.of(
        actor, "tool_confirmed", confirmation=str(id), app=version.app, tool=version.name, digest=version.digest,
        read_only=draft.read_only, idempotent=draft.idempotent, risk=draft.risk, note=draft.note,
        hints=version.hints, replaces=str(replaced) if replaced else None,
    )  # fmt: skip
    await proof_store.append_to_org(tx, fact)
    return id


async def _looked_at(tx: Transaction, draft: ConfirmationDraft) -> ToolVersion:
    known = await agents_store.get_tools(tx, draft.tool, draft.app)
    if not known:
        raise NotFound(
            f"No worker has published a tool `{draft.tool}`{f' of the app `{draft.app}`' if draft.app else ''}.",
            code="tool_not_found",
            hint="`cortex tool list` names those that there are.",
        )
    if len(known) > 1:
        raise InvalidInput(
            f"Several apps have a tool `{draft.tool}`: {', '.join(each.app for each in known[:10])}.",
            code="app_needed",
            hint="Name the app that you mean.",
            field="app",
        )
    newest = known[0]
    if newest.server is None:
        raise InvalidInput(
            f"`{newest.name}` is written in the code of its app, which says itself what it is.",
            code="tool_not_confirmable",
            hint="Only tools of MCP servers are confirmed. Change `read_only`, `risk` or `on_uncertain` in the code.",
        )
    if draft.digest != newest.digest:
        raise Conflict(
            f"`{newest.name}` has changed since you looked: its newest version is {newest.digest}.",
            code="tool_changed",
            hint="Look at it again with `cortex tool list`, then confirm that version.",
            digest=newest.digest,
        )
    return newest


@verb(Permission.TOOL_CONFIRM)
async def revoke(db: Database, actor: Actor, id: UUID) -> ToolConfirmation:
    """From now on the tool has side effects again, and is asked about. Once more changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        await agents_store.raise_confirmation_version(tx)
        held = require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")
        if held.revoked_at is not None:
            return held
        await agents_store.revoke_confirmation(tx, held.app, held.tool_name, actor.name)
        fact = Fact.of(
            actor, "tool_unconfirmed", confirmation=str(id), app=held.app, tool=held.tool_name, digest=held.digest
        )  # fmt: skip
        await proof_store.append_to_org(tx, fact)
        return require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


@verb(Permission.TOOL_READ)
async def get(db: Database, actor: Actor, id: UUID) -> ToolConfirmation:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await agents_store.get_confirmation(tx, id), "tool_confirmation")


@verb(Permission.TOOL_READ)
async def list_page(
    db: Database, actor: Actor, position: Position | None, limit: int, *, holding: bool = False
) -> Page[ToolConfirmation]:
    """Newest first; ``holding`` leaves out what was revoked or replaced."""
    async with db.transaction(actor.org_id) as tx:
        return await agents_store.list_confirmations(tx, position, limit, holding)
