"""A leased job whose session is bound to atlases: its gates are looked at between steps, and written with them.

Of a session that is bound to nothing all of this costs nothing.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.gates.model.gates import ANSWER, PLANE_TOOLS, GateInput, Ruling
from cortex_plane.gates.rules.authorization import Authorization
from cortex_plane.gates.verbs.atlas_cache import book
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import Hold, JobKind, JobStatus
from cortex_plane.jobs.rules.attempts import Assignment, StepWrite, WriteResult
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.sessions.rules import SessionMessage, inputs_of
from cortex_plane.worker import gate_code
from cortex_plane.worker.calls import Call, CallKind, storable
from cortex_plane.worker.gate_evaluation import AttemptGates, as_gated, governed
from cortex_plane.worker.lease import Lease, WorkerContext

if TYPE_CHECKING:
    from cortex_plane.worker.calls import Toolbox

log = structlog.get_logger()

GATE_TRIES = 20
"""How often a write is tried that others of the same session come before."""
IN_A_ROW = 3
"""So often at once; then whoever is many waits a moment, each another one."""
INPUT = "input"
"""In the cursor: what a task begins with was looked at."""
GATES_CHANGED = "gates_changed"
UNGOVERNED = {"revision": 0, "atlases": 0}
"""What whoever knows of no atlas has looked at."""
AFTER = "after"
"""In the cursor: what comes after the calls before this position of the step at hand was looked at."""
TOLD = "told"
"""In the cursor: under so many atlases the calls of the step at hand were judged, and what gates tell of them was told."""
BY_THE_PLANE = PolicyDecision(verdict=PolicyVerdict.ALLOW, rule="plane")


class Governed(Lease):
    toolbox: Toolbox

    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        super().__init__(host, given)
        self.gates: AttemptGates | None = None
        """None where its session is bound to no atlas."""
        self.unheard: list[SessionMessage] = []
        """What people said and gates have not looked at."""

    async def govern(self, said: Sequence[SessionMessage]) -> None:
        """Its gates, as they stand. What cannot be read is not gone around: the job is held, and says why."""
        bound = self.given.bound
        if bound is None:
            return
        try:
            atlases = await book.at(self.host.db, self.given.org_id, bound["atlases"])
            self.gates = AttemptGates(atlases, bound, self.time.now)
        except Unavailable:
            raise
        except (CortexError, ValueError) as error:
            await self._unreadable(error)
        # Whatever was said before anybody governed the session is history.
        since = max(int(bound["since"]), self.gates.state.heard)
        self.hear([each for each in said if each.seq > since])

    async def _unreadable(self, error: CortexError | ValueError) -> NoReturn:
        """Whatever people decided stays decided: once somebody has repaired it, the job goes on from here."""
        why = error.message if isinstance(error, CortexError) else str(error)
        hint = (
            error.hint
            if isinstance(error, CortexError)
            else "Restore the row of `session_gates` from a backup."
        )
        said = storable(
            f"The gates of its session cannot be read: {why.rstrip('.')}. {hint} Then `cortex job resume` it."
        )
        log.error("gates unreadable", job_id=str(self.given.job_id), reason=said)
        await self.hold(Hold.GATES_UNREADABLE, {"why": said[:2000]}, StepWrite(error=said[:8000]))

    def hear(self, said: Sequence[SessionMessage]) -> None:
        if self.gates is not None and self.given.kind is JobKind.CONVERSATION:
            self.unheard += [each for each in said if each.role == "user"]

    # Between two steps -----------------------------------------------------------------------------------------

    async def look(self) -> WriteResult | None:
        """What fires now. A trace that must be durable before anything else happens is written here."""
        gates = self.gates
        if gates is None:
            return None
        talks = self.given.kind is JobKind.CONVERSATION
        inputs, self.unheard = self._inputs(), []
        asked = await gate_code.triggered(gates.atlases, self.host.apps[self.given.app].triggers, inputs)
        moment = GateInput(
            now=self.time.now(),
            inputs=inputs,
            heard=self.at.message_seq if talks else 0,
            task=self._task if inputs and not talks else "",
            custom=frozenset(asked.fired),
            unknown=frozenset(asked.unknown),
        )
        gates.look(moment, asked.elapsed_ms, asked.traces)
        for gate, reason in asked.failed:
            self.notes.append(self.fact("trigger_failed", gate=gate.key, reason=reason))
        self.at.gates = {**self.at.gates, INPUT: 1}
        await self.require_open()
        return await self.write(StepWrite()) if gates.urgent else None

    @property
    def _task(self) -> str:
        return str(self.given.job_id)

    def _inputs(self) -> tuple[str, ...]:
        if self.given.kind is JobKind.CONVERSATION:
            return tuple(each.text for each in self.unheard)
        if self.at.gates.get(INPUT) or (self.gates is not None and self._task in self.gates.state.tasks):
            return ()
        return inputs_of(self.given.payload, code=self.limits.skills.run is not None)

    async def require_open(self, write: StepWrite | None = None) -> None:
        """A gate that shut the whole session ends the job. ``write``: what is kept of it."""
        shut = self.gates.shut if self.gates is not None else None
        if shut is not None:
            await self.fail(
                f"The gate `{shut.gate}` is shut: {shut.reason.rstrip('.')}.",
                "Its session goes no further: look at `cortex job watch` for what was asked, and open a new session.",
                write,
            )

    # Calls -----------------------------------------------------------------------------------------------------

    def tell_once(self) -> None:
        """The calls of a step were judged: what gates tell of that goes with the next write, and is not told again."""
        if self.gates is not None:
            self.at.gates = {**self.at.gates, TOLD: len(self.gates.atlases.atlases)}

    def recall_told(self, calls: Sequence[Call]) -> None:
        """Of calls that an earlier attempt judged. Where an atlas came since, they are judged anew, by its gates too."""
        told = self.gates is not None and self.at.gates.get(TOLD) == len(self.gates.atlases.atlases)
        for call in calls:
            call.judged = told

    def forget(self, calls: Sequence[Call]) -> None:
        """What is neither sent nor asked for: whoever goes on judges it anew, and tells of it."""
        if self.gates is not None:
            gone = self.gates.forget(calls)
            if any(str(call.id) in gone and not call.judged for call in calls):
                self.at.gates = {name: at for name, at in self.at.gates.items() if name != TOLD}

    def happened(self, calls: Sequence[Call], before: int | None = None) -> None:
        """Calls of the step at hand ended: what comes after them fires once. ``before``: a position; None is all of them."""
        if self.gates is None:
            return
        since = self.at.gates.get(AFTER, 0)
        upto = len(calls) if before is None else before
        self.gates.happened([call for call in calls if since <= call.position < upto])
        self.at.gates = {name: at for name, at in self.at.gates.items() if name != AFTER}
        if before is not None:
            self.at.gates[AFTER] = max(since, upto)

    def ruled(self, call: Call, *, new: bool) -> Ruling | None:
        """What gates say of a call; None where nobody governs it. ``new``: questions are opened, and it is traced."""
        if self.gates is None or not governed(call):
            return None
        if new:
            return self.gates.judged(as_gated(call))
        approved = call.granted or call.status is CallStatus.APPROVED
        return self.gates.judged_again(as_gated(call, approved=approved), sent=call.settle_after is not None)

    def let_through(self, call: Call) -> None:
        """Gates do not stop it: it is charged when it runs. What was sent before was charged then."""
        if self.gates is None or not governed(call) or call.settle_after is not None:
            return
        self.gates.let_through(call, approved=call.status is CallStatus.APPROVED)
        if call.kind is CallKind.READ and (self.gates.metered or self.gates.is_scarce(call)):
            # What is used up leaves a row before it is sent: no two share it. Reading twice harms nobody.
            call.kind, call.declared = CallKind.EFFECT, OnUncertain.RETRY_WITH_KEY

    def explain(self, call: Call) -> None:
        """A call that gates refused says what they ask."""
        ruling = call.ruling
        if self.gates is None or ruling is None or call.status is not CallStatus.REJECTED:
            return
        if ruling.verdict is PolicyVerdict.DENY:
            call.error = self.gates.said(call, ruling)

    async def answer(self, calls: Sequence[Call]) -> None:
        """What an agent says to gates is settled here, after all other calls of the response were judged."""
        for call in calls:
            if self.gates is None or call.name not in PLANE_TOOLS or call.tool is None or call.settled:
                continue
            call.authorization = Authorization(new_id(), BY_THE_PLANE)
            told = (
                await self._taken_as_answer(self.gates, call.values)
                if call.name == ANSWER
                else self.gates.requested(str(call.values["name"]))
            )
            call.kind, call.status = CallKind.READ, CallStatus.COMPLETED
            call.result = canonical(told)

    async def _taken_as_answer(self, gates: AttemptGates, values: Mapping[str, Any]) -> dict[str, Any]:
        answers: Mapping[str, Any] = values["answers"]
        found = gates.meant(str(values["gate"]), values["call"])
        custom: dict[str, str | None] = {}
        if found.gate is not None:
            validators = self.host.apps[self.given.app].validators
            custom = await gate_code.validated(found.gate, validators, answers)
        seen = gates.answered(found, answers, custom)
        if seen.valid or found.which is None or gates.waits_for(found.which):
            return seen.told
        return {
            **seen.told,
            "shut": True,
            "reason": "; ".join(map(str, seen.told.get("faults", {}).values())),
        }

    # The prompt ------------------------------------------------------------------------------------------------

    def prompted(self, own: str | None) -> str | None:
        """A system prompt with what gates add to it: what rarely changes stands first."""
        if self.gates is None:
            return own
        parts = self.gates.prompt
        return "\n\n".join(part for part in (parts.instructions, own, parts.knowledge) if part) or None

    @property
    def notice(self) -> str:
        """The questions that must be answered before anything else."""
        return self.gates.prompt.questions if self.gates is not None else ""

    # Writing ---------------------------------------------------------------------------------------------------

    async def write(self, write: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        """What gates remember and tell goes with it, also where the checkpoint stays as it was: it did happen."""
        gates = self.gates
        if gates is None:
            if write.reads:
                write = replace(write, more={**write.more, "gates": UNGOVERNED})
            return await super().write(write, keep_checkpoint=keep_checkpoint)
        if write.dispatches and not gates.still_allow(write):
            raise Conflict(
                "The gates of this session changed since this call was let through.", code=GATES_CHANGED
            )
        done = gates.unwritten
        for tries in range(1, GATE_TRIES + 1):
            carried = gates.carry(write, done)
            whole = copy.copy(write) if carried.more or carried.told else write
            if carried.more:
                whole.more = {**write.more, "gates": carried.more}
            if carried.told:
                told = [self.fact(trace.type, **trace.payload) for trace in carried.told]
                whole.facts = [*told, *write.facts]
                whole.events = [*((trace.type, trace.payload) for trace in carried.told), *write.events]
            try:
                written = await super().write(whole, keep_checkpoint=keep_checkpoint)
            except Conflict as error:
                if error.code != GATES_CHANGED or tries == GATE_TRIES:
                    raise
                if tries > IN_A_ROW:
                    await asyncio.sleep(random.random() * tries / 100)  # noqa: S311 -- jitter
                await self._look_again(gates)
                if (write.dispatches or write.reads) and (gates.unmet or not gates.still_allow(write)):
                    raise
                continue
            if write.status is not JobStatus.COMPLETED or written.status is JobStatus.COMPLETED:
                gates.made(carried)
            return written
        raise AssertionError("the last try returns or raises")

    async def _look_again(self, gates: AttemptGates) -> None:
        """Somebody else of the same session wrote first."""
        bound = await workers.bound_atlases(self.host.db, self.given)
        if bound is None:
            raise RuntimeError(f"The session of job {self.given.job_id} is bound to nothing any more.")
        gates.rebase(await book.at(self.host.db, self.given.org_id, bound["atlases"]), bound)
