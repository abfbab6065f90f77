"""Sending a call: intent before, outcome after, and what is done when nobody knows.

The window that remains, said honestly: between the last look at the clock and the moment the tool acts. A worker that
is stopped exactly there, for longer than its lease and the tool's timeout together, acts late. `retry_with_key` is
safe even then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import structlog

from cortex_plane.agents.model.tools import DidNotHappen, Happened, OnUncertain, ToolError
from cortex_plane.db.crash_points import reached
from cortex_plane.jobs.model.effects import CallStatus, Settlement, settlement
from cortex_plane.jobs.model.jobs import Hold
from cortex_plane.jobs.rules.attempts import StepWrite, WriteResult
from cortex_plane.kernel.errors import CortexError
from cortex_plane.worker import approval_requests
from cortex_plane.worker.approval_requests import uncertain
from cortex_plane.worker.calls import Call, WriteBlobs, outcome_of, storable, without_intents
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.tools.arguments import ToolContext
from cortex_plane.worker.tools.tool import encode_result

if TYPE_CHECKING:
    from cortex_plane.worker.attempt import Acting

log = structlog.get_logger()
T = TypeVar("T")

MAX_PAUSE = 2.0
MAX_SENDS = 3
"""After so many uncertain ends of one call a person is asked, whatever the tool declares."""


async def read(attempt: Acting, call: Call) -> None:
    """A call without side effects: whatever goes wrong is an answer for the model."""
    reached("tool:before")
    try:
        value = await within(call.code.timeout_seconds, call.code.call(call.values, _context(attempt, call)))
    except Exception as error:
        call.fail(_described(call, error))
    else:
        _keep(attempt, call, value)
    reached("tool:after")


async def perform(attempt: Acting, call: Call, calls: Sequence[Call], due: StepWrite, *, new: bool) -> None:
    """A call with side effects, until it is settled. ``due`` holds its intent where it is ``new``."""
    if new:
        if call.granted:
            await _require_receipt(attempt, call, due)
        due.dispatches = True
        if not await _send(attempt, call, calls, due):
            await _settle(attempt, call, calls, ended=True)
        return
    if due.calls or due.outcomes:
        await attempt.write_calls(calls, due)
    if call.status is CallStatus.CLEARED:
        if not await _send_again(attempt, call, calls):
            await _settle(attempt, call, calls, ended=True)
        return
    await _settle(attempt, call, calls, ended=False)


async def _require_receipt(attempt: Acting, call: Call, due: StepWrite) -> None:
    """Without a true receipt an approved call is not sent: the job ends, and says why. What was done before is kept."""
    wrong = approval_requests.receipt_refusal(attempt, call, sent=False)
    if wrong is None:
        return
    call.status, call.error = CallStatus.REJECTED, f"not sent: {wrong}"
    kept = without_intents(due)
    kept.outcomes = orjson.dumps([*orjson.loads(kept.outcomes or b"[]"), call.outcome(WriteBlobs())])
    kept.facts = [
        *kept.facts,
        attempt.fact("receipt_refused", call=str(call.id), tool=call.name, reason=wrong),
    ]
    await attempt.fail(
        f"`{call.name}` was not sent: {wrong}. Somebody may have written to the database behind the plane's back.",
        "Look at `cortex audit verify`; then `cortex job resubmit` asks again.",
        kept,
    )


async def _send(
    attempt: Acting, call: Call, calls: Sequence[Call], intent: StepWrite, unknown: str | None = None
) -> bool:
    """Write the intent, then send. True: the outcome is known. ``unknown``: how an earlier sending went wrong."""
    attempt.at.invocation = call.id
    for _ in range(MAX_SENDS):
        intent.policies = call.policies
        written = await attempt.write_calls(calls, intent)
        if written.cancelled:
            again = "not sent again: the job was cancelled, and nobody knows whether it happened before"
            call.fail("not sent: the job was cancelled" if unknown is None else f"{again} ({unknown})")
            return True
        sent = await _dispatch(attempt, call, written)
        if sent is not None:
            return sent
        # Nothing was sent, and the lease is still ours, or the next write says so.
        call.attempt += 1
        intent = StepWrite(again=(call.id,), dispatches=True)
    if unknown is not None:
        call.error = unknown
        return False
    call.fail("not sent: this worker is held up again and again")
    return True


async def _send_again(attempt: Acting, call: Call, calls: Sequence[Call], unknown: str | None = None) -> bool:
    """The same call with the same key: only after it is safe to do so."""
    call.attempt += 1
    call.status = CallStatus.INTENDED
    again = StepWrite(
        again=(call.id,),
        dispatches=True,
        facts=[attempt.fact("call_sent_again", call=str(call.id), tool=call.name, attempt=call.attempt)],
    )
    return await _send(attempt, call, calls, again, unknown)


async def _dispatch(attempt: Acting, call: Call, written: WriteResult) -> bool | None:
    """True: the outcome is known. False: it is not. None: it was too late to send."""
    before = written.dispatch_before or written.now
    # Counted from before the write went out, so this is never later than what the database means.
    last_moment = written.sent + (before - written.now).total_seconds()
    call.settle_after = before + timedelta(seconds=call.code.timeout_seconds)
    context = _context(attempt, call)
    reached("tool:before")
    if ticks() >= last_moment:
        # By now somebody else may be settling it.
        return None
    try:
        value = await within(call.code.timeout_seconds, call.code.call(call.values, context))
    except ToolError as error:
        call.fail(_described(call, error))
    except Exception as error:
        if not attempt.toolbox.has_side_effects(call.code):
            # It only reads, and left a row because it uses something up: whatever goes wrong is an answer for the model.
            call.fail(_described(call, error))
            return True
        call.timed_out = isinstance(error, TimedOut)
        # It may have happened before it went wrong. Only ToolError says that it did not.
        call.error = _described(call, error)
        log.warning("uncertain effect", job_id=str(attempt.given.job_id), tool=call.name, error=call.error)
        return False
    else:
        _keep(attempt, call, value)
    reached("tool:after")
    return True


async def _settle(attempt: Acting, call: Call, calls: Sequence[Call], *, ended: bool) -> None:
    """Find out, or let somebody decide. ``ended``: the call is over in this process, so nobody can be sending it."""
    on_uncertain = call.on_uncertain or OnUncertain.ASK_HUMAN
    trouble = call.error
    while True:
        now = attempt.time.now()
        # It is over in this process, not in the world: a probe that comes too early would find nothing yet.
        over = ended and on_uncertain is not OnUncertain.PROBE
        safe_at = now if over or call.settle_after is None else call.settle_after
        chosen, known = settlement(on_uncertain, safe_at, now), False
        if on_uncertain is OnUncertain.PROBE and call.timed_out and not call.code.is_async:
            # A thread that was given up on may act at any time: no probe could be believed.
            chosen = Settlement.ASK_HUMAN
        if chosen is Settlement.WAIT:
            await attempt.sleep((safe_at - now).total_seconds() + 0.01, "an effect is uncertain")
        if call.attempt >= MAX_SENDS and chosen in (Settlement.SEND_AGAIN, Settlement.PROBE):
            chosen = Settlement.ASK_HUMAN
        if chosen is Settlement.PROBE:
            found = await _probe(attempt, call)
            if isinstance(found, Happened):
                call.error, call.settled_by = None, "probe"
                _keep(attempt, call, found.result)
                return
            known = isinstance(found, DidNotHappen)
            chosen = Settlement.SEND_AGAIN if known else Settlement.ASK_HUMAN
        if chosen is Settlement.SEND_AGAIN and not await attempt.may_be_sent_again(call):
            # What allowed it does not any more. Whoever answers says whether there is anything left to allow.
            chosen = Settlement.ASK_HUMAN
        if chosen is Settlement.ASK_HUMAN:
            call.status, call.error = CallStatus.UNCERTAIN, trouble
            write = outcome_of(call)
            write.requests = (uncertain(attempt, call),)
            await attempt.hold(Hold.UNCERTAIN_EFFECT, {"call": str(call.id), "tool": call.name}, write)
        if chosen is Settlement.FAIL:
            call.fail(trouble or "the worker stopped while it was under way")
            attempt.happened(calls)
            await attempt.fail(
                f"Nobody knows whether `{call.name}` happened, and it declares on_uncertain=fail.",
                "Look at the outside world, then `cortex job resubmit` it or not.",
                outcome_of(call),
            )
        if ended and not known:
            await asyncio.sleep(min(MAX_PAUSE, attempt.limits.backoff.delay(call.attempt, random.random())))  # noqa: S311
        call.error = None
        unknown = None if known else trouble or "the worker stopped while it was under way"
        if await _send_again(attempt, call, calls, unknown):
            return
        ended, trouble = True, call.error


async def _probe(attempt: Acting, call: Call) -> Happened | DidNotHappen | None:
    reached("probe:before")
    try:
        found = await within(
            call.code.timeout_seconds, call.code.ask_probe(call.values, _context(attempt, call))
        )
    except Exception as error:
        described = _described(call, error)
        log.warning("probe failed", job_id=str(attempt.given.job_id), tool=call.name, error=described)
        found = None
    reached("probe:after")
    return found


def _keep(attempt: Acting, call: Call, value: Any) -> None:
    """It happened, whatever it returned: a result that cannot be kept does not undo it."""
    call.status, call.error = CallStatus.COMPLETED, None
    try:
        attempt.keep_result(call, encode_result(value))
    except CortexError as error:
        call.result = orjson.dumps({"unstorable": error.message})


def _context(attempt: Acting, call: Call) -> ToolContext:
    given = attempt.given
    return ToolContext(
        org_id=given.org_id,
        session_id=given.session_id,
        job_id=given.job_id,
        agent_id=given.agent_id,
        invocation_id=call.id,
        step=call.step,
        attempt=call.attempt,
    )


class TimedOut(Exception):
    """The time of a call is over. A tool may raise TimeoutError itself; then the call is over too."""


class Stopped(Exception):
    """A tool raised what would stop its caller."""


async def within(seconds: float, running: Coroutine[Any, Any, T]) -> T:
    """Whatever a tool raises ends its call, never the job or the worker around it."""
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(seconds) as limit:
            return await running
    except TimeoutError as error:
        if limit.expired():
            raise TimedOut from error
        raise
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise Stopped("CancelledError") from error
    except SystemExit as error:
        raise Stopped(f"SystemExit: {error.code}") from error


def _described(call: Call, error: Exception) -> str:
    if isinstance(error, ToolError):
        return storable(str(error))
    if isinstance(error, TimedOut):
        return f"`{call.name}` did not answer within {call.code.timeout_seconds:g} s."
    if isinstance(error, Stopped):
        return storable(f"`{call.name}` raised {error}")
    return storable(f"`{call.name}` raised {type(error).__name__}: {str(error)[:2000]}")
