"""Tools that a code agent calls: through the same door and the same ledger as those that a model calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from cortex_plane.agents.model.completions import CallRequest
from cortex_plane.agents.model.tools import provider_name
from cortex_plane.gates.model.gates import PLANE_TOOLS
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, ToolCall
from cortex_plane.jobs.model.journal import EntryKind, EntryStatus, JournalEntry, ToolDenied, ToolFailed
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.worker import step_events
from cortex_plane.worker.approval_requests import terms_of
from cortex_plane.worker.calls import Call, CallKind, PendingWrite, plan_call, summary, together
from cortex_plane.worker.clock import ticks
from cortex_plane.worker.code.context import Decision
from cortex_plane.worker.code.scopes import Unwind
from cortex_plane.worker.code.wishes import ToolWish
from cortex_plane.worker.effects import perform, read

if TYPE_CHECKING:
    from cortex_plane.worker.code.performer import Performer


async def call(performer: Performer, key: str, entry: JournalEntry | None, wish: ToolWish) -> Any:
    """One call, from where it stands to its end."""
    attempt, began = performer.attempt, ticks()
    position = performer.position(entry)
    row = performer.calls.get(position) if entry is not None else None
    made = _planned(performer, position, wish, row)
    if wish.demand is not None:
        attempt.demands[made.id] = wish.demand
    # Where the code is the same, it is a person's edit that it refuses: that is a failure like any other.
    edited = row is not None and row.status is CallStatus.APPROVED and attempt.is_the_code_of(row)
    if row is not None and made.tool is None and row.status not in SETTLED and not edited:
        performer.mismatch = (
            f"the tool `{wish.tool}` of `{key}` is gone, or does not take its arguments any more"
        )
        raise Unwind
    if row is None or await attempt.restore_call(made, row):
        await attempt.look()
        await attempt.authorize([made])
    open_entry = performer.entry(key, position, wish, EntryStatus.OPEN) if entry is None else StepWrite()
    if made.status is CallStatus.AWAITING:
        await _ask(performer, made, open_entry)
    if made.settled and made.name in PLANE_TOOLS and made.tool is not None:
        return _told(performer, key, position, wish, made)
    if made.settled:
        return _refused(performer, key, position, wish, made)
    told = StepWrite(facts=[attempt.fact("step_responded", step=position, key=key, calls=[summary(made)])])
    told.events = step_events.called(position, None, [made])
    if made.kind is CallKind.READ:
        await attempt.flush()
        if attempt.gates is not None and attempt.gates.urgent:
            await attempt.write(StepWrite())
        performer.boundary()
        if attempt.gates is not None and not attempt.gates.allow([made]):
            await attempt.give_way([made], StepWrite(), "The gates of this session changed meanwhile.")
        await read(attempt, made)
        pending = PendingWrite(together(open_entry, StepWrite(events=told.events)))
        pending.new(made)
    else:
        await _performed(performer, made, together(open_entry, told if row is None else StepWrite()))
        if wish.kind is EntryKind.APPROVAL and made.granted and not attempt.cancel_requested:
            # With its intent the grant is used up, and there is nothing to send: a slow worker changes nothing of the yes.
            made.status, made.error, made.result = CallStatus.COMPLETED, None, b'{"approved":true}'
        pending = PendingWrite(StepWrite())
        pending.settled.append(made)
    if attempt.gates is not None:
        attempt.gates.happened([made])
    write = pending.take()
    write.stored = (*write.stored, *attempt.take_stored())
    write.events = [*write.events, *step_events.settled(position, [made])]
    said = f"{made.name}: {made.status}"
    attempt.record(performer.done(key, position, wish, began, write, said, calls=[step_events.outcome(made)]))
    if attempt.cancel_requested and made.status is CallStatus.FAILED:
        attempt.ends.cancelled = True
        raise Unwind
    return await _outcome(performer, wish, entry, made)


def _planned(performer: Performer, position: int, wish: ToolWish, row: ToolCall | None) -> Call:
    arguments = row.arguments if row is not None and row.edited else wish.arguments
    request = CallRequest(id=f"call-{position}", name=provider_name(wish.tool), arguments=arguments)
    return plan_call(0, request, row.id if row is not None else new_id(), performer.attempt.toolbox, position)


async def _ask(performer: Performer, made: Call, open_entry: StepWrite) -> None:
    """People must decide: it waits, unless nobody could."""
    attempt = performer.attempt
    terms = await terms_of(attempt, made, StepWrite())
    if terms is None:
        return
    attempt.record(open_entry)
    attempt.ends.awaiting.append(made)
    attempt.ends.terms[made.id] = terms
    raise Unwind


def _told(performer: Performer, key: str, position: int, wish: ToolWish, made: Call) -> Any:
    """What gates said to the agent: nothing was sent, and it is recorded like a call."""
    pending = PendingWrite(performer.entry(key, position, wish, EntryStatus.DONE, made.result))
    if not made.written:
        pending.new(made)
    write = pending.take()
    write.events = [*step_events.called(position, None, [made]), *step_events.settled(position, [made])]
    performer.attempt.record(
        performer.done(key, position, wish, ticks(), write, f"{made.name}: {made.status}")
    )
    return orjson.loads(made.result or b"null")


def _refused(performer: Performer, key: str, position: int, wish: ToolWish, made: Call) -> Any:
    """Never sent: not allowed, or not a call that the tool takes."""
    said = made.error or "It was refused."
    denied = made.kind is not CallKind.REFUSED
    error: CortexError | None = ToolDenied(said) if denied else ToolFailed(said)
    gates, ruling = performer.attempt.gates, made.ruling
    if gates is not None and ruling is not None and ruling.verdict is PolicyVerdict.DENY:
        error = gates.closed(made, ruling) or error
    decision: Decision | None = None
    if wish.kind is EntryKind.APPROVAL:
        decision, error = Decision(approved=False, reason=said), None
    pending = PendingWrite(StepWrite())
    if not made.written:
        pending.new(made)
    write = pending.take()
    result = canonical({"approved": False, "reason": said, "by": None}) if decision is not None else None
    status = EntryStatus.FAILED if error is not None else EntryStatus.DONE
    write = together(write, performer.entry(key, position, wish, status, result, error))
    write.events = [*step_events.called(position, None, [made]), *step_events.settled(position, [made])]
    performer.attempt.record(
        performer.done(key, position, wish, ticks(), write, f"{made.name}: {made.status}")
    )
    if error is not None:
        raise error
    return decision


async def _performed(performer: Performer, made: Call, due: StepWrite) -> None:
    attempt = performer.attempt
    performer.boundary()
    pending = PendingWrite(due)
    is_new = made.status in (None, CallStatus.APPROVED)
    if made.status is CallStatus.APPROVED:
        made.granted = True
        pending.granted.append(made)
    elif is_new:
        pending.new(made)
    if is_new:
        made.status = CallStatus.INTENDED
    attempt.calls[made.id] = made
    await perform(attempt, made, [made], pending.take(), new=is_new)


async def _outcome(performer: Performer, wish: ToolWish, entry: JournalEntry | None, made: Call) -> Any:
    if made.status is not CallStatus.COMPLETED:
        said = made.error or f"`{made.name}` failed."
        raise ToolDenied(said) if made.status is CallStatus.REJECTED else ToolFailed(said)
    if wish.kind is EntryKind.APPROVAL:
        return Decision(**entry.result) if entry is not None and entry.result else Decision(approved=True)
    if made.result_id is not None:
        return await performer.fetched(made.result_id)
    return orjson.loads(made.result or b"null")
