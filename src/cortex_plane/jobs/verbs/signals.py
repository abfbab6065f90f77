"""Signals: sent once, kept, and heard by every job that waits for them, whenever it began to.

Sending is one transaction: the signal, what its waiters are told, their jobs awake, events and audit. Where more jobs wait
than one transaction wakes, the next ones wake the rest; whoever dies in between leaves them to a chore.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.journal import AT_ONCE, KEPT, Signal, SignalDraft, SignalReceipt, Wait, taken
from cortex_plane.jobs.store import ReachedWaiters
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.frame import once_only, require_found, verb

FORGOTTEN_AT_ONCE = 10_000


@verb(Permission.SIGNAL_SEND)
async def send(
    db: Database,
    actor: Actor,
    draft: SignalDraft,
    once: IdempotencyKey | None = None,
    *,
    at_once: int = AT_ONCE,
) -> SignalReceipt:
    """The first payload for a name and a key stays: the same again changes nothing, another one is a conflict."""
    made, woken, more = False, 0, False
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            nonlocal made, woken, more
            id, made, reached = await jobs_store.send_signal(
                tx, new_id(), draft, actor.identity, actor.name, at_once
            )
            if reached is None:
                raise taken(draft.name, draft.key)
            woken, more = await _tell(tx, actor, id, draft.name, draft.key, reached), reached.more
            if made:
                digest = hashlib.sha256(canonical(draft.payload)).hexdigest()
                fact = Fact.of(
                    actor, "signal_sent", signal=str(id), name=draft.name, key=draft.key, payload_sha256=digest,
                    reached=woken, more=more,
                )  # fmt: skip
                await proof_store.append_to_org(tx, fact)
            return id

        id, _ = await once_only(tx, actor, "signals.send", once, make)
        signal = require_found(await jobs_store.get_signal(tx, id), "signal")
    _hint(db, woken)
    while more:
        told, more = await _tell_more(db, actor, signal, at_once)
        woken += told
    return SignalReceipt(signal=signal, changed=made, woken=woken)


async def _tell(tx: Transaction, actor: Actor, id: UUID, name: str, key: str, reached: ReachedWaiters) -> int:
    """How many jobs were told."""
    told = [{"signal_id": str(id), "name": name, "key": key, "entry": each.entry} for each in reached.waiters]
    facts = [
        Fact.of(actor, "signal_received", signal=str(id), name=name, key=key, job=str(each.job_id), entry=each.entry)
        for each in reached.waiters
    ]  # fmt: skip
    await jobs_store.hear_signals(tx, id, reached, told, [fact.body for fact in facts])
    return len({each.job_id for each in reached.waiters})


async def _tell_more(db: Database, actor: Actor, signal: Signal, at_once: int) -> tuple[int, bool]:
    async with db.transaction(actor.org_id) as tx:
        reached = await jobs_store.wake_more_waiters(tx, signal.id, at_once)
        if reached is None:
            return 0, False
        told = await _tell(tx, actor, signal.id, signal.name, signal.key, reached)
    _hint(db, told)
    return told, reached.more


def _hint(db: Database, woken: int) -> None:
    if woken:
        db.hints.work()


@verb(Permission.SIGNAL_READ)
async def list_page(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    name: str | None = None,
    key: str | None = None,
) -> Page[Signal]:
    """Newest first. Whoever is not staff sees what they sent themselves."""
    async with db.transaction(actor.org_id) as tx:
        return await jobs_store.list_signals(tx, position, limit, actor.sees, name, key)


@verb(Permission.JOB_READ)
async def waits(db: Database, actor: Actor, job_id: UUID) -> list[Wait]:
    """What a job waits for, and what came."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
        return await jobs_store.list_signal_waits(tx, job_id)


# For the plane itself --------------------------------------------------------------------------------------------


async def of_job(db: Database, org_id: UUID, job_id: UUID) -> list[Wait]:
    """What a job that goes on waited for. What came after its time, but before it went on, came."""
    async with db.transaction(org_id) as tx:
        return await jobs_store.list_signal_waits(tx, job_id)


async def tell_the_rest(db: Database) -> None:
    """Jobs that were not told because the sender died between two transactions."""
    for org_id, id in await jobs_store.find_untold_signals(db, AT_ONCE):
        async with db.transaction(org_id) as tx:
            signal = await jobs_store.get_signal(tx, id)
        more = signal is not None
        while more and signal is not None:
            actor = scheduler_actor(org_id, new_id(), "scheduler")
            _, more = await _tell_more(db, actor, signal, AT_ONCE)


async def forget(db: Database) -> None:
    """Signals that are old and that no open job has heard, and waits of jobs that ended."""
    while await jobs_store.forget_signals(db, KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass
