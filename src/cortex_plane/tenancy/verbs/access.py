"""New secrets, the actor that a member is, ending a person's access, reports of forged credentials, and request rates."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import structlog

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.credentials import TOKEN_PREFIX, TOKEN_VERSION
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import CortexError, TooMany
from cortex_plane.kernel.meters import meters
from cortex_plane.notify.model import SECRET_BYTES, secret_of
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import (
    CODE_PREFIX,
    ENTROPY_BYTES,
    LINK_PREFIX,
    PREFIX,
    SESSION_PREFIX,
    Actor,
    ActorKind,
    scheduler_actor,
)
from cortex_plane.tenancy.model.identities import ALPHABET, CODE_LENGTH, VERIFY_PREFIX
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.store import orgs as orgs_store


async def actor_for_member(tx: Transaction, user_account_id: UUID, credential_id: UUID) -> Actor | None:
    """Them, with the roles and the clearance of this moment; None where there is nobody, or they are deactivated."""
    member = await orgs_store.get_member(tx, user_account_id)
    if member is None or member.deactivated_at is not None:
        return None
    return Actor(
        org_id=tx.org,
        key_id=credential_id,
        kind=ActorKind.PERSON,
        name=member.display_name,
        roles=frozenset(Role(role) for role in member.roles),
        user_account_id=member.id,
        clearance=member.clearance,
    )


async def sponsors_by(tx: Transaction, actor: Actor) -> list[UUID]:
    """Who answers for what the actor does to people and their channels: they themselves, and for a program whoever made its key."""
    if actor.kind is not ActorKind.SERVICE:
        return [actor.identity]
    maker = await credentials_store.key_maker(tx, actor.key_id)
    return [actor.identity, *([maker] if maker else [])]


@dataclass(frozen=True, slots=True)
class EndedAccess:
    """What ended with the access of a member."""

    keys: Sequence[UUID] = ()
    browser_sessions: Sequence[UUID] = ()
    others: Sequence[UUID] = ()
    """Links, codes and tokens."""

    def as_audit(self, *others: UUID) -> dict[str, object]:
        credentials = [*self.browser_sessions, *self.others, *others]
        return {
            "keys_ended": [str(id) for id in self.keys],
            "browser_sessions_ended": len(self.browser_sessions),
            "credentials_ended": [str(id) for id in credentials],
        }


async def end_access(tx: Transaction, member_id: UUID) -> EndedAccess:
    """Ends every credential of a member for good, and what came from it. Whoever calls this holds their access."""
    keys = await credentials_store.revoke_keys(tx, member_id)
    return EndedAccess(
        keys=keys,
        browser_sessions=await credentials_store.end_sessions(tx, member_id),
        others=[
            *await credentials_store.end_enrolment_codes_of_keys(tx, keys),
            *await credentials_store.void_enrolment_codes(tx, member_id),
            *await credentials_store.end_links(tx, member_id),
            *await identities_store.void_codes(tx, member_id),
            *await approvals_store.void_tokens(tx, member_id),
        ],
    )


def new_key_secret() -> str:
    return PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_link_token() -> str:
    return LINK_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_session_secret() -> str:
    return SESSION_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_enrolment_code() -> str:
    return CODE_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_approval_token() -> str:
    return f"{TOKEN_PREFIX}{TOKEN_VERSION}_{secrets.token_urlsafe(ENTROPY_BYTES)}"


def new_verify_code() -> str:
    return VERIFY_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_sender_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))


def new_mark() -> str:
    """Tells one rendering of a page from another."""
    return secrets.token_hex(8)


def new_webhook_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


log = structlog.get_logger()

PAUSE_SECONDS = 3600
"""A row is on the trail at most so often, and by each process: whoever tries it again and again fills no chain."""
REMEMBERED = 10_000

_forgery_reports: OrderedDict[tuple[UUID, str, str], float] = OrderedDict()


@contextlib.asynccontextmanager
async def forgery_refusal(db: Database, refusal: Callable[[], CortexError]) -> AsyncIterator[None]:
    """Reports a forged row that is met inside, and raises what is raised for one that does not exist.

    Open no transaction around it: what is reported is committed, and what was begun is not."""
    try:
        yield
    except Forged as forgery:
        await report_forgery(db, forgery)
        raise refusal() from None


async def report_forgery(db: Database, forgery: Forged) -> None:
    """In the log, in a metric and on the org's trail."""
    meters().forged(forgery.kind)
    details = {"kind": forgery.kind.value, "id": str(forgery.id)}
    log.error("a row has a false MAC and was refused", org_id=str(forgery.org_id), **details)
    if not _is_due((forgery.org_id, forgery.kind.value, str(forgery.id))):
        return
    plane = scheduler_actor(forgery.org_id, UUID(int=0), "plane")
    async with db.transaction(forgery.org_id) as tx:
        await proof_store.append_to_org(tx, Fact.of(plane, "credential_refused", **details))


def _is_due(row: tuple[UUID, str, str]) -> bool:
    now = time.monotonic()
    before = _forgery_reports.get(row)
    if before is not None and now - before < PAUSE_SECONDS:
        return False
    _forgery_reports[row] = now
    _forgery_reports.move_to_end(row)
    if len(_forgery_reports) > REMEMBERED:
        _forgery_reports.popitem(last=False)
    return True


BURST_SECONDS = 10
"""How long somebody may have been silent for it to count."""
BATCHES = 10
"""Into so many parts a full budget is taken."""
BATCH_SECONDS = 5.0
BUDGET_LIFETIME = timedelta(days=1)
"""How long a budget that nobody uses keeps its row: it was full again after seconds."""
BUDGETS_AT_ONCE = 10_000
REMEMBERED_CALLERS = 10_000
"""Callers whose batch is remembered: those who came longest ago are forgotten first."""


@dataclass(slots=True)
class _Batch:
    left: int = 0
    until: float = 0.0
    """When it is void; or, where nothing is left, when it is worth asking again."""
    want: int = 0
    """How many are asked for next; 0 before the first time."""
    granted: int = 0
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class RequestRates:
    """The batches of one process. ``per_second`` holds for each key, and for each person with all their keys and browsers."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = max(1.0, per_second * BURST_SECONDS)
        self._batch = max(1, int(self._burst / BATCHES))
        self._clock = clock
        self._batches: OrderedDict[tuple[UUID, UUID], _Batch] = OrderedDict()

    async def take(self, db: Database, actor: Actor, *, by_key: bool = True) -> None:
        """Count one request. Raises ``TooMany`` where its key or its person made too many. A browser has no key to count by."""
        if not self._per_second:
            return
        subjects = {actor.key_id} if by_key or actor.user_account_id is None else set()
        if actor.user_account_id is not None:
            subjects.add(actor.user_account_id)
        batch = self._batch_of((actor.org_id, min(subjects) if not by_key else actor.key_id))
        if self._spend(batch):
            return
        async with batch.taking:
            if not self._spend(batch):
                await self._refill(db, actor.org_id, sorted(subjects), batch)

    def _batch_of(self, key: tuple[UUID, UUID]) -> _Batch:
        batch = self._batches.setdefault(key, _Batch())
        self._batches.move_to_end(key)
        if len(self._batches) > REMEMBERED_CALLERS:
            self._batches.popitem(last=False)
        return batch

    def _spend(self, batch: _Batch) -> bool:
        """One of those that are here. Raises ``TooMany`` where there is none, and asking would be in vain."""
        now = self._clock()
        if now >= batch.until:
            return False
        if batch.left == 0:
            # Nothing was left when it was asked for. Nobody asks the database for each request that is refused.
            raise self._too_many(batch.until - now)
        batch.left -= 1
        if batch.left == 0:
            batch.until = now
        return True

    async def _refill(self, db: Database, org_id: UUID, subjects: list[UUID], batch: _Batch) -> None:
        self._resize(batch)
        count, wait = await orgs_store.take_requests(db, org_id, subjects, batch.want, self._per_second, self._burst)
        now, batch.granted = self._clock(), count
        if count == 0:
            batch.left, batch.until = 0, now + wait
            raise self._too_many(wait)
        batch.left, batch.until = count - 1, now + (BATCH_SECONDS if count > 1 else 0.0)

    def _resize(self, batch: _Batch) -> None:
        """Twice as many as before where they were used up, twice what was used where some were not."""
        used = batch.granted - batch.left
        wanted = 2 * (used if batch.left else batch.want)
        batch.want = max(1, min(wanted, self._batch)) if batch.want else self._batch

    def _too_many(self, seconds: float) -> TooMany:
        return TooMany(
            f"More than {self._per_second:g} requests a second came with this key or from this person.",
            code="rate_limited",
            hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
            retry_after=math.ceil(seconds),
        )


async def forget_request_budgets(db: Database) -> None:
    """Delete the rows of budgets that have long been full again: a budget without a row is full."""
    while await orgs_store.forget_request_budgets(db, BUDGET_LIFETIME, BUDGETS_AT_ONCE) >= BUDGETS_AT_ONCE:
        pass
