"""Calls and resolutions in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.calls.model import ExternalCall, RequestedCall, Resolution
from cortex_plane.db.database import Database, Queries, Row, Transaction
from cortex_plane.kernel.fields import Risk, adapter, parse
from cortex_plane.proof.rules.receipts import Stamp
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy.model.access import Actor, Fact

queries = Queries("calls")

CallMessage = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCall:
    """A call with what only the plane looks at."""

    call: ExternalCall
    sender: str | None
    asked_hash: bytes
    asker: UUID
    policies: str
    event_seq: int
    """How far the events of its session go."""
    unsettled: bool
    """Whether the same request under another key is this call while nobody knows what became of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallContext:
    """What a verdict about a call depends on, besides the call."""

    org_id: UUID
    session_id: UUID
    job_id: UUID
    agent_id: UUID
    agent: str
    teams: list[UUID]
    skill_config: dict[str, Any]
    request_policies: list[dict[str, Any]] | None
    policies: str
    earlier: UUID | None
    """The call that its key stands for."""
    joined: UUID | None
    """The call that its key joined while that one was in doubt."""
    doubted: UUID | None
    """The call that it is as long as nobody knows what became of that one."""
    turned_down: bool
    bound: dict[str, Any] | None
    """The atlases of the session, and what its gates remember; None where it has none."""
    known_risk: Risk | None
    """The highest risk under which the tool is published or confirmed; None where nobody published it."""
    at: datetime
    """When all of this was so."""
    askers: list[UUID] = field(default_factory=list)
    """The identities that ask, besides who opened the session: they caused it too."""

    @property
    def session_kind(self) -> str:
        return SessionKind.EXTERNAL

    @property
    def skills(self) -> SkillSettings:
        return SkillSettings.of(self.skill_config)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    expires_at: datetime
    consumed_at: datetime | None
    input_hash: str
    stamp: Stamp | None
    parks: int
    """How often the call was parked since it began with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedGatedCall:
    """A call that ends in a session with gates: what a look at them needs."""

    session_id: UUID
    tool: str
    bound: dict[str, Any]
    at: datetime


async def call_context(
    db: Database, org_id: UUID, session_id: UUID, sees: UUID | None, key: str | None, tool: str, input_hash: str,
    acts_as: tuple[UUID, UUID | None] | None, runner: str | None = None, request_hash: bytes | None = None,
    digest: str | None = None,
) -> CallContext | None:  # fmt: skip
    """``acts_as``: key and person, refused where an atlas keeps them out. None: there is no such session. Its job is None where it is no external one: then this raises KeyError."""
    caller, person = acts_as or (None, None)
    rows = await db.call(
        "call_context", org_id, session_id, sees, key, tool, bytes.fromhex(input_hash), acts_as is not None, caller,
        person, runner, request_hash, digest,
    )  # fmt: skip
    if not rows:
        return None
    row = rows[0]
    if row["job_id"] is None:
        raise LookupError(row["kind"])
    return CallContext(
        org_id=org_id, session_id=session_id,
        **{name: row[name] for name in (
            "job_id", "agent_id", "agent", "teams", "skill_config", "request_policies", "policies", "earlier",
            "joined", "doubted", "turned_down", "bound", "at")},
        known_risk=Risk(row["known_risk"]) if row["known_risk"] is not None else None,
    )  # fmt: skip


async def read_call(db: Database, org_id: UUID, id: UUID, sees: UUID | None) -> StoredCall | None:
    rows = await db.call("read_call", org_id, id, sees)
    return _stored_call(rows[0]) if rows else None


async def get_call(tx: Transaction, id: UUID, sees: UUID | None) -> StoredCall | None:
    row = await tx.row(queries.get_call, id, sees)
    return None if row is None else _stored_call(row)


def _stored_call(row: Row) -> StoredCall:
    return StoredCall(
        call=parse(ExternalCall, row), sender=row["sender"], asked_hash=row["asked_hash"], asker=row["asker"],
        policies=row["policies"], event_seq=row["event_seq"], unsettled=row["unsettled"],
    )  # fmt: skip


async def outlives_session(tx: Transaction, id: UUID) -> bool:
    """Whether a call whose outcome nobody knows is in doubt for later sessions of its agent, too."""
    return bool(await tx.value(queries.outlives_session, id))


async def lock_asking(tx: Transaction, job_id: UUID, *, is_open: bool, askers: Sequence[UUID] = ()) -> Row:
    """The job under its lock. ``is_open``: refused where it is over or held."""
    (row,) = await tx.rows(queries.lock_asking, tx.org, job_id, is_open, list(askers))
    return row


async def get_grant(tx: Transaction, id: UUID) -> Grant | None:
    """The newest grant of a call; its receipt is for the caller to verify."""
    row = await tx.row(queries.get_grant, id)
    if row is None:
        return None
    names = ("body", "signature", "key_id", "public_key", "sealed")
    stamp = Stamp(**{name: row[name] for name in names}) if row["key_id"] is not None else None
    return Grant(stamp=stamp, **{name: row[name] for name in ("expires_at", "consumed_at", "input_hash", "parks")})


async def require_its_agent(tx: Transaction, id: UUID, by: UUID) -> None:
    await tx.call("require_its_agent", tx.org, id, by)


async def authorize_call(
    at: Database | Transaction, org_id: UUID, job_id: UUID, call: dict[str, Any], arguments: bytes, declared: dict[str, Any],
    dispatch_seconds: float, events: CallMessage, facts: Sequence[Fact], more: dict[str, Any] | None = None,
) -> Row:  # fmt: skip
    """The call's id, and whether it is ``fresh``: with a key that was used before it is the call of then."""
    (row,) = await at.call(
        "authorize_call", org_id, job_id, call, arguments.decode(), declared, dispatch_seconds,
        *_call_message(events, facts), more,
    )  # fmt: skip
    return row


async def intend_call(
    db: Database, org_id: UUID, seen: ExternalCall, sender: str | None, policies: str, dispatch_seconds: float,
    intent: dict[str, Any], by: UUID, events: CallMessage, facts: Sequence[Fact], more: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    await db.call(
        "intend_call", org_id, seen.id, seen.status, seen.attempt, sender, policies, dispatch_seconds, intent, by,
        *_call_message(events, facts), more,
    )  # fmt: skip


async def settle_call(
    db: Database, actor: Actor, id: UUID, attempt: int | None, outcome: dict[str, Any], result: bytes | None,
    events: CallMessage, facts: Sequence[Fact], more: dict[str, Any] | None = None,
) -> EndedGatedCall | None:  # fmt: skip
    """``more``: None where nobody looked at the gates of its session. If it has some, nothing is written, and they are returned."""
    rows = await db.call(
        "settle_call", actor.org_id, id, actor.sees, actor.identity, attempt, outcome,
        result.decode() if result is not None else None, *_call_message(events, facts), more,
    )  # fmt: skip
    return EndedGatedCall(**rows[0]) if rows and rows[0]["bound"] is not None else None


async def join_doubt(
    db: Database, actor: Actor, job_id: UUID, call: RequestedCall, key: str, runner: str, request_hash: bytes, fact: Fact
) -> None:  # fmt: skip
    """A key stands for this call from now on. Raises `Conflict` (`call_changed`) where it is not in doubt any more."""
    await db.call(
        "join_doubt", actor.org_id, job_id, call.id, key, actor.identity, runner, request_hash, call.digest,
        bytes.fromhex(call.input_hash), [fact.action], [fact.body],
    )  # fmt: skip


async def join_waiting(
    db: Database, actor: Actor, job_id: UUID, id: UUID, key: str, request_hash: bytes, fact: Fact
) -> None:
    """A key stands for this call from now on, unless it has one by now."""
    await db.call("join_waiting", actor.org_id, job_id, id, key, request_hash, [fact.action], [fact.body])


async def end_call(tx: Transaction, outcome: dict[str, Any]) -> None:
    """What became of a call, without its agent. Raises `Conflict` where somebody else was faster."""
    await tx.call("end_call", tx.org, outcome, None)


async def release_keys(tx: Transaction, id: UUID) -> None:
    await tx.call("release_keys", tx.org, id)


def _call_message(events: CallMessage, facts: Sequence[Fact]) -> tuple[Sequence[Any], ...]:
    kinds_and_data = map(list, zip(*events, strict=True)) if events else ((), ())
    return *kinds_and_data, [fact.action for fact in facts], [fact.body for fact in facts]


async def ask_again(
    tx: Transaction, job_id: UUID, session_id: UUID, call: dict[str, Any], arguments: bytes, policies: str,
    approval_id: UUID,
) -> None:  # fmt: skip
    """What was allowed or approved is asked for once more, with the same row."""
    await tx.call("ask_again", tx.org, job_id, session_id, call, arguments.decode(), policies, approval_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResolution:
    id: UUID
    trace_id: UUID
    session_id: UUID
    request: dict[str, Any]
    answer: Resolution | None
    """None where it was forgotten: what was executed under it stays."""
    atlases: list[dict[str, Any]]
    expires_at: datetime
    expired: bool


async def insert_resolution(
    tx: Transaction, resolution: Resolution, asker: UUID, goal_hash: bytes | None, request: dict[str, Any],
    atlases: list[dict[str, Any]], now: datetime,
) -> None:  # fmt: skip
    await tx.rows(
        queries.insert_resolution, tx.org, resolution.id, resolution.trace_id, resolution.session_id, asker, goal_hash, request,
        adapter(Resolution).dump_python(resolution, mode="json"), atlases, resolution.expires_at, now,
    )  # fmt: skip


async def forget_resolutions(db: Database, unused: timedelta, used: timedelta, limit: int) -> int:
    """Those under which nothing was executed, and the bodies of the others, so long after they expired; across orgs."""
    (row,) = await db.call("forget_resolutions", None, unused, used, limit)
    return int(row["forget_resolutions"])
