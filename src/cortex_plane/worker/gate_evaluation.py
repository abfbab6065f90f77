"""The gates of a session in one attempt: their rulings, their state, and how the state goes with the attempt's writes.

Evaluating changes nothing but the state that is held here. The state goes with the next write, together with the step, the
intents and the facts that it belongs to; what was evaluated while a write was under way goes with the one after it. A call
uses up its pass in the write that has its intent, or, where it only reads, its result: so it is charged once, and never for
asking. If another attempt of the same session wrote first, everything that was not written is evaluated again on top of its
write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import orjson

from cortex_plane.approvals.model.approvals import ApprovalKind
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.model.gates import (
    FOR_ONE_CALL,
    OF_THE_PLANE,
    Answered,
    GatedCall,
    GateInput,
    GateState,
    Open,
    Pass,
    PromptParts,
    Ruling,
    Shut,
    Trace,
    kept_state,
    state_of,
)
from cortex_plane.gates.rules.answers import AnswerTarget, answer, ignored, meant
from cortex_plane.gates.rules.authorization import LIMITING
from cortex_plane.gates.rules.effects import EvaluationRun, RanCall, notices
from cortex_plane.gates.rules.evaluation import at_boundary, judge, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import asked_of_all, prompt_parts, questions
from cortex_plane.gates.verbs.atlas_cache import minutes_of
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.journal import GateClosed
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.worker.calls import Call

_RUNS = (CallStatus.INTENDED, CallStatus.COMPLETED, CallStatus.FAILED)
AGAIN = "Answer it, then make the same call again."
NEXT = "Do not call it again; go another way."


class AttemptGates:
    def __init__(
        self, atlases: CompiledAtlases, bound: Mapping[str, Any], now: Callable[[], datetime]
    ) -> None:
        self._now = now
        self._done: list[Done] = []
        """Since the last write: done again where somebody else wrote first."""
        self._due: dict[UUID, tuple[Call, GatedCall]] = {}
        """Calls that were let through and are not charged yet."""
        self._let_by: dict[UUID, GateState] = {}
        """What held when they were, where that is known exactly."""
        self._ahead: tuple[GateState, GateState] | None = None
        """What held before the response, and that as if all of them had been sent; None until somebody asks."""
        self._asking: dict[UUID, tuple[GatedCall, Sequence[Gate]]] = {}
        """Calls that people are to be asked about, with the gates on what they see."""
        self._response: list[Done] = []
        """What was done since the response at hand began."""
        self._prompt: tuple[CompiledAtlases, GateState | None, PromptParts | None] = atlases, None, None
        self.rebase(atlases, bound)
        self.tried = False
        """A question that stops the session was answered, rightly or not, in the response at hand."""

    def rebase(self, atlases: CompiledAtlases, bound: Mapping[str, Any]) -> None:
        """On top of what the database has now."""
        self.atlases, self.revision = atlases, int(bound["revision"])
        self._kept = state_of(bound["state"])
        self._retell()
        self._replay()
        self.metered = bool(minutes_of(atlases))
        """Some steward limits how many calls run in a minute."""

    def _retell(self) -> None:
        """What fires once fired for whoever wrote first, and is told by them."""
        state = self._kept
        for each in self._done:
            if each.change is not None:
                changed = each.change(self.atlases, state)
                state, each.traces = changed.state, changed.traces

    def _again(self, state: GateState, done: Iterable[Done]) -> GateState:
        for each in done:
            if each.change is not None:
                state = each.change(self.atlases, state).state
        return state

    def _replay(self) -> None:
        """On top of what is kept by now, also what held before the response: what others used up is gone for it too."""
        self._ahead = None
        self._before = self._again(self._kept, without(self._done, self._response))
        self.state = self._again(self._kept, self._done) if self._response else self._before

    def _remember(self, change: Change | None, traces: Sequence[Trace], call: str = "") -> None:
        if change is not None or traces:
            self._done.append(Done(change, tuple(traces), call))
            self._response.append(self._done[-1])

    def _did(self, change: Callable[[CompiledAtlases, GateState], C], call: str = "") -> C:
        done = change(self.atlases, self.state)
        self._remember(change if done.state != self.state else None, done.traces, call)
        self.state = done.state
        return done

    def forget(self, calls: Iterable[Call]) -> set[str]:
        """Calls that are to be judged anew, by whoever goes on: nothing of it happened, and nothing is told of it.

        The ids of those of which something was to be told.
        """
        ids = {str(call.id) for call in calls}
        gone = [each for each in self._done if each.call in ids]
        self._done, self._response = without(self._done, gone), without(self._response, gone)
        self._replay()
        return {each.call for each in gone}

    def drop(self) -> None:
        """What is not written yet is given up."""
        self._done, self._response = [], []
        self._replay()

    @property
    def unmet(self) -> bool:
        """The session was bound to an atlas whose gates were not looked at yet."""
        return any(atlas_id not in self.state.fired for atlas_id in self.atlases.once)

    # Between two steps -----------------------------------------------------------------------------------------

    def look(self, moment: GateInput, elapsed_ms: float = 0.0, traces: Sequence[Trace] = ()) -> None:
        """``traces``: of gates that could not be evaluated."""
        self._did(lambda atlases, state: at_boundary(atlases, state, moment, elapsed_ms))
        self._remember(None, traces)

    def happened(self, calls: Sequence[Call]) -> None:
        """Calls ended: what comes after them is part of the write that records how."""
        ended = [call for call in calls if call.status in _RUNS and governed(call)]
        finished = tuple(call.name for call in ended)
        errors = tuple(
            f"{call.name}: {call.error or 'it failed'}" for call in ended if call.status is CallStatus.FAILED
        )
        self._ahead = None  # what ran gives what it grants
        if finished:
            self.look(GateInput(now=self._now(), finished=finished, errors=errors))

    def went_wrong(self, error: str) -> None:
        self.look(GateInput(now=self._now(), errors=(error,)))

    # A response ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The calls of one response are judged by what held before it."""
        self._before, self._response, self._ahead, self.tried = self.state, [], None, False
        self._due = {id: each for id, each in self._due.items() if each[0].status is not CallStatus.REJECTED}
        self._let_by = {id: state for id, state in self._let_by.items() if id in self._due}

    def judged(self, call: GatedCall) -> Ruling:
        """Of a new call. Calls that are on their way use up what lets them through, so that each needs its own."""
        now = self._now()
        state = self._after_due(self._before, call, now)
        if state is self.state:
            return self._did(lambda atlases, now_state: judge(atlases, now_state, call, now), call.call_id)
        ruling = judge(self.atlases, state, call, now)

        def change(atlases: CompiledAtlases, now_state: GateState) -> Ruling:
            done = judge(atlases, now_state, call, now)
            # Open is what was asked, and told so: not what this call would be asked by what came after it.
            state = _opened(atlases, replace(done.state, open=now_state.open), ruling.asks, now)
            return replace(done, state=state, traces=ruling.traces)

        self._did(change, call.call_id)
        return ruling

    def _after_due(self, state: GateState, call: GatedCall, now: datetime) -> GateState:
        """As if all others that were let through had been sent."""
        others = [each for each in self._due.values() if each[1].call_id != call.call_id]
        if len(others) == len(self._due) and self._ahead is not None and self._ahead[0] is state:
            return self._ahead[1]
        after = state
        for made, earlier in others:
            after = ran(self.atlases, after, earlier, now, grants=made.settled).state
        if len(others) == len(self._due):
            self._ahead = state, after
        return after

    def judged_again(self, call: GatedCall, *, sent: bool) -> Ruling:
        """Of a call that was judged before; nothing is told or remembered of it. ``sent``: it passed its gates and was
        counted then, and only what is forbidden now keeps it from being sent again."""
        now = self._now()
        state = replace(self.state, spent={}) if sent else self._after_due(self.state, call, now)
        found = judge(self.atlases, state, call, now)
        if sent and found.asks:
            # Not those of a capability: it was locked since, and is opened by an answer only.
            passes = (
                Pass(gate=each.gate, action=call.action, input_hash=call.input_hash)
                for each in found.asks
                if self.atlases.gates[each.gate].trigger.type in FOR_ONE_CALL
            )
            found = judge(self.atlases, replace(state, passes=(*state.passes, *passes)), call, now)
        return replace(found, state=self.state, traces=())

    def let_through(self, call: Call, *, approved: bool = False) -> None:
        """It is charged by the write that sends it."""
        known, gated = call.id in self._due, as_gated(call, approved=approved)
        self._due[call.id] = call, gated
        if self.state == self._before:
            self._let_by[call.id] = self.state
        if self._ahead is not None:
            # One more on its way: all of them are not counted again for each.
            state, after = self._ahead
            self._ahead = (
                None if known else (state, ran(self.atlases, after, gated, self._now(), grants=False).state)
            )

    def take_back(self, call: Call) -> None:
        """It is not sent after all."""
        self._let_by.pop(call.id, None)
        if self._due.pop(call.id, None) is not None:
            self._ahead = None

    def is_scarce(self, call: Call) -> bool:
        """Whether sending it uses something up, which two must not share."""
        found = self.atlases.of_action(call.name)
        return any(policy.type in LIMITING for _, policy in found.policies) or any(
            (each.action, each.input_hash) == (call.name, call.input_hash) for each in self.state.passes
        )

    def asks_people(self, call: Call) -> None:
        """With the gates on what they see, which is recorded by the write that asks, and by no other."""
        if call.ruling is not None:
            self._asking[call.id] = as_gated(call), call.ruling.people

    def meant(self, gate: str, call: str | None) -> AnswerTarget:
        """Only what was asked before the response can be answered by it."""
        found = meant(self.atlases, self._before, gate, call)
        if found.which is None:
            return found
        same = [each for each in self.state.open if _question(each) == _question(found.which)]
        if not same:
            return AnswerTarget(error=f"`{gate[:100]}` does not wait for an answer any more.")
        self.tried = self.tried or not same[0].call
        return AnswerTarget(gate=found.gate, which=same[0])

    def answered(
        self, found: AnswerTarget, answers: Mapping[str, Any], custom: Mapping[str, str | None]
    ) -> Answered:
        """``custom``: what validators said."""
        now = self._now()

        def change(atlases: CompiledAtlases, state: GateState) -> Answered:
            which = found.which and next(
                (each for each in state.open if _question(each) == _question(found.which)), None
            )
            asked = found if which is None else replace(found, which=which)
            if found.which is not None and which is None:
                asked = AnswerTarget(error="It does not wait for an answer any more.")
            return answer(atlases, state, asked, answers, custom, now)

        return self._did(change)

    def waits_for(self, which: Open) -> bool:
        return any(_question(each) == _question(which) for each in self.state.open)

    def requested(self, what: str) -> dict[str, Any]:
        now, known = self._now(), set(self.state.contexts)
        done = self._did(lambda atlases, state: requested(atlases, state, what, now))
        given = [key for key in done.state.contexts if key not in known]
        names = [self.atlases.contexts[key].name for key in given if key in self.atlases.contexts]
        if done.fired:
            return {"found": True, "given": names, "next": "It stands in your instructions from now on."}
        return {"found": False, "next": "Nobody wrote anything down under this name; go on without it."}

    def unanswered(self) -> None:
        """After a response: where it did not even try to answer what stops the session, that counts as a wrong answer."""
        if self._before.asks and not self.tried and self.state.asks:
            now = self._now()
            self._did(lambda atlases, state: ignored(atlases, state, now))

    @property
    def shut(self) -> Shut | None:
        """The gate that ended the session's work for good."""
        return self.state.ended

    @property
    def prompt(self) -> PromptParts:
        """Looked at several times a step, and seldom another one."""
        atlases, state, parts = self._prompt
        if atlases is not self.atlases or state is not self.state or parts is None:
            parts = prompt_parts(self.atlases, self.state)
            self._prompt = self.atlases, self.state, parts
        return parts

    # What is said of a refusal ---------------------------------------------------------------------------------

    def waits(self, ruling: Ruling) -> tuple[Open, ...]:
        """What must be answered before the call is made again."""
        if ruling.asks or ruling.verdict is not PolicyVerdict.DENY or self._before.ended is not None:
            return ruling.asks
        return self._before.asks

    def said(self, call: Call, ruling: Ruling) -> str:
        """Why gates refused a call, for whoever made it."""
        waiting = self.waits(ruling)
        if ruling.asks:
            return f"`{call.name}` was not called. {questions(self.atlases, waiting)} {AGAIN}"
        if waiting:
            return f"`{call.name}` was not called: {ruling.reason}. {AGAIN}"
        return f"`{call.name}` is denied ({ruling.rule}): {ruling.reason or 'its atlas does not allow it'}. {NEXT}"

    def closed(self, call: Call, ruling: Ruling) -> GateClosed | None:
        """The same for code; None where no answer would help."""
        asked = asked_of_all(self.atlases, self.waits(ruling))
        return GateClosed(call.error or self.said(call, ruling), questions=asked) if asked else None

    # Writing ---------------------------------------------------------------------------------------------------

    @property
    def urgent(self) -> bool:
        """Something must be durable before anything else happens."""
        return any(trace.sync for each in self._done for trace in each.traces)

    def sent_by(self, write: StepWrite) -> list[tuple[UUID, GatedCall]]:
        """The calls that run with this write and were not charged yet."""
        if not self._due:
            return []
        rows = orjson.loads(write.calls or b"[]")
        ids = [row["id"] for row in rows if row["status"] in _RUNS]
        ids += [row["id"] for row in orjson.loads(write.granted or b"[]") if "standing_id" not in row]
        return [(id, self._due[id][1]) for id in map(UUID, ids) if id in self._due]

    def still_allow(self, write: StepWrite) -> bool:
        """Whether every call that a write sends would be let through by what is known now."""
        return self._allow(self._due[id] for id, _ in self.sent_by(write))

    def allow(self, calls: Iterable[Call]) -> bool:
        """The same of calls that are about to run."""
        return self._allow(self._due[call.id] for call in calls if call.id in self._due)

    def _allow(self, calls: Iterable[tuple[Call, GatedCall]]) -> bool:
        """By what happened, and not by what gates said of calls that are not settled: whoever goes on judges those anew. What
        is settled ran already."""
        ids = {str(id) for id in self._due}
        state, now = (
            self._again(self._kept, (each for each in self._done if each.call not in ids)),
            self._now(),
        )
        for made, call in calls:
            if state == self._let_by.get(made.id):
                continue  # nothing came since it was let through
            # Of an approved one, too: its people did not see a gate that stands before it by now.
            if not made.settled and judge(self.atlases, state, call, now).verdict is not PolicyVerdict.ALLOW:
                return False
            state = ran(self.atlases, state, call, now, grants=made.settled).state
        return True

    @property
    def unwritten(self) -> tuple[Done, ...]:
        return tuple(self._done)

    def carry(self, write: StepWrite, done: tuple[Done, ...]) -> GateWrite:
        """What goes with this write, of what was done before it. Nothing changes here until it is made."""
        state, now = self.state, self._now()
        if list(done) != self._done:
            # What came while the write was tried belongs to others, and goes with what they write.
            state = self._again(self._kept, done)
        told = [trace for each in done for trace in each.traces]
        for request in write.requests:
            if request.kind is ApprovalKind.CALL and request.call_id in self._asking:
                state = shown(self.atlases, state, *self._asking[request.call_id], now).state
        sent = self.sent_by(write)
        for _, call in sent:
            charged = ran(self.atlases, state, call, now)
            state = charged.state
            told += charged.traces
        more: dict[str, Any] = {}
        if state != self._kept:
            more = {"state": kept_state(state)}
        if write.dispatches and sent and self.metered:
            more["minutes"] = minutes_of(self.atlases, len(sent))
        news = notices(
            self.atlases, told, [RanCall(action=c.action, risk=c.risk, call_id=str(id)) for id, c in sent]
        )
        if news:
            more["notices"] = news
        if write.dispatches or write.reads:
            # Whoever was bound to another atlas meanwhile sends nothing that it did not look at.
            more["atlases"] = len(self.atlases.atlases)
        if more:
            more["revision"] = self.revision
        return GateWrite(
            state=state, is_new="state" in more, done=done, ids=tuple(id for id, _ in sent), told=tuple(told),
            more=more,
        )  # fmt: skip

    def made(self, carried: GateWrite) -> None:
        """The write was made: what it held is behind us, what came meanwhile is not."""
        self.revision += carried.is_new
        self._kept = carried.state
        self._done, self._response = (
            without(self._done, carried.done),
            without(self._response, carried.done),
        )
        self._replay()
        for id in carried.ids:
            self._due.pop(id, None)
            self._let_by.pop(id, None)


def _question(which: Open) -> tuple[str, str, str]:
    return which.gate, which.action, which.input_hash


def _opened(atlases: CompiledAtlases, state: GateState, asked: Iterable[Open], now: datetime) -> GateState:
    """What somebody was asked can be answered, also where an earlier call has not used up its pass yet."""
    work = EvaluationRun(atlases, state, now)
    known = {_question(each) for each in state.open}
    for each in asked:
        if _question(each) not in known:
            work.ask_call(each)
    return work.state()


def governed(call: Call) -> bool:
    """Gates look at whatever acts; the plane's own tools are theirs, or people's."""
    return call.name not in OF_THE_PLANE


def as_gated(call: Call, *, approved: bool = False) -> GatedCall:
    return GatedCall(
        action=call.name,
        arguments=orjson.loads(call.arguments),
        input_hash=call.input_hash,
        risk=call.code.risk,
        approved=approved,
        call_id=str(call.id),
        told=call.judged,
    )


class Changed(Protocol):
    """What every evaluation gives."""

    @property
    def state(self) -> GateState: ...
    @property
    def traces(self) -> tuple[Trace, ...]: ...


C = TypeVar("C", bound=Changed)
Change = Callable[[CompiledAtlases, GateState], Changed]


@dataclass(slots=True, eq=False)
class Done:
    """One evaluation that is not written yet."""

    change: Change | None
    """None where it changed nothing."""
    traces: tuple[Trace, ...]
    """What it tells: anew, where it is done again on top of what somebody else wrote."""
    call: str = ""
    """The call that it was about, until it is settled or sent."""


@dataclass(frozen=True, slots=True)
class GateWrite:
    """What one write holds of gates."""

    state: GateState
    is_new: bool
    """The row is written."""
    done: tuple[Done, ...]
    ids: tuple[UUID, ...]
    told: tuple[Trace, ...]
    more: dict[str, Any]


def without(done: Sequence[Done], gone: Sequence[Done]) -> list[Done]:
    return [each for each in done if each not in gone] if gone else list(done)
