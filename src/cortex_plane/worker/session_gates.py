"""The gates of a job's session: evaluated between steps, asked about each call, and written with the steps.

A session that is bound to no atlas has no gates, and all of this costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.gates.model.gates import ANSWER, PLANE_TOOLS, GateInput, Ruling
from cortex_plane.gates.rules.authorization import Authorization
from cortex_plane.gates.verbs.atlas_cache import book
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import Hold, JobKind
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.sessions.rules import SessionMessage, inputs_of
from cortex_plane.worker import gate_code
from cortex_plane.worker.calls import Call, CallKind, storable
from cortex_plane.worker.ends import Ended, JobFailed, JobHeld
from cortex_plane.worker.gate_evaluation import AttemptGates, as_gated, governed
from cortex_plane.worker.lease import Lease

log = structlog.get_logger()

INPUT = "input"
"""In the cursor: the input of a task was evaluated."""
AFTER = "after"
"""In the cursor: gates after a call were evaluated for the calls before this position of the current step."""
JUDGED = "told"
"""In the cursor: the calls of the current step were judged under so many atlases, and the gate events are written."""
BY_THE_PLANE = PolicyDecision(verdict=PolicyVerdict.ALLOW, rule="plane")


class SessionGates:
    def __init__(self, lease: Lease, *, runs_code: bool) -> None:
        self._lease = lease
        self._runs_code = runs_code
        self.bound: AttemptGates | None = None
        """None where the session is bound to no atlas."""
        self._messages: list[SessionMessage] = []
        """Messages of people that gates have not evaluated yet."""

    async def load(self, messages: Sequence[SessionMessage]) -> None:
        """Load the session's gates. Gates that cannot be read are not bypassed: the job is held."""
        lease, bound = self._lease, self._lease.assignment.bound
        if bound is None:
            return
        try:
            atlases = await book.at(lease.db, lease.assignment.org_id, bound["atlases"])
            self.bound = AttemptGates(atlases, bound, lease.time.now)
        except Unavailable:
            raise
        except (CortexError, ValueError) as error:
            raise Ended(self._unreadable(error)) from error
        # Messages from before the session was bound are history.
        since = max(int(bound["since"]), self.bound.history.state.heard)
        self.add_messages([message for message in messages if message.seq > since])

    def _unreadable(self, error: CortexError | ValueError) -> JobHeld:
        """Decisions of people stay: once the gates are repaired, the job goes on from here."""
        why = error.message if isinstance(error, CortexError) else str(error)
        hint = error.hint if isinstance(error, CortexError) else "Restore the row of `session_gates` from a backup."
        message = storable(
            f"The gates of its session cannot be read: {why.rstrip('.')}. {hint} Then `cortex job resume` it."
        )
        log.error("gates unreadable", job_id=str(self._lease.assignment.job_id), reason=message)
        return JobHeld(Hold.GATES_UNREADABLE, {"why": message[:2000]}, StepWrite(error=message[:8000]))

    async def reload(self, gates: AttemptGates) -> None:
        """Another attempt of the same session wrote first."""
        lease = self._lease
        bound = await workers.bound_atlases(lease.db, lease.assignment)
        if bound is None:
            raise RuntimeError(f"The session of job {lease.assignment.job_id} is bound to nothing any more.")
        gates.rebase(await book.at(lease.db, lease.assignment.org_id, bound["atlases"]), bound)

    def add_messages(self, messages: Sequence[SessionMessage]) -> None:
        if self.bound is not None and self._lease.assignment.kind is JobKind.CONVERSATION:
            self._messages += [message for message in messages if message.role == "user"]

    # Between two steps -----------------------------------------------------------------------------------------

    async def evaluate(self) -> bool:
        """Which gates fire now. True: a trace must be durable before anything else happens."""
        gates, lease = self.bound, self._lease
        if gates is None:
            return False
        is_conversation = lease.assignment.kind is JobKind.CONVERSATION
        inputs, self._messages = self._inputs(), []
        result = await gate_code.run_triggers(gates.history.atlases, lease.app.triggers, inputs)
        moment = GateInput(
            now=lease.time.now(),
            inputs=inputs,
            heard=lease.progress.message_seq if is_conversation else 0,
            task=self._task if inputs and not is_conversation else "",
            custom=frozenset(result.firing),
            unknown=frozenset(result.unknown),
        )
        gates.evaluate(moment, result.elapsed_ms, result.traces)
        for gate, reason in result.failures:
            lease.notes.append(lease.fact("trigger_failed", gate=gate.key, reason=reason))
        lease.progress.gates = {**lease.progress.gates, INPUT: 1}
        self.require_open()
        return gates.history.urgent

    @property
    def _task(self) -> str:
        return str(self._lease.assignment.job_id)

    def _inputs(self) -> tuple[str, ...]:
        assignment = self._lease.assignment
        if assignment.kind is JobKind.CONVERSATION:
            return tuple(message.text for message in self._messages)
        if self._lease.progress.gates.get(INPUT) or (
            self.bound is not None and self._task in self.bound.history.state.tasks
        ):
            return ()
        return inputs_of(assignment.payload, code=self._runs_code)

    def require_open(self, write: StepWrite | None = None) -> None:
        """A gate that shut the whole session ends the job. ``write``: what is kept of the step."""
        shut = self.bound.history.shut if self.bound is not None else None
        if shut is not None:
            raise Ended(
                JobFailed(
                    f"The gate `{shut.gate}` is shut: {shut.reason.rstrip('.')}.",
                    "Its session goes no further: look at `cortex job watch` for what was asked, and open a new session.",
                    write,
                )
            )

    # Calls -----------------------------------------------------------------------------------------------------

    def mark_judged(self) -> None:
        """The calls of a step were judged: the gate events go with the next write, and are not written again."""
        if self.bound is not None:
            progress = self._lease.progress
            progress.gates = {**progress.gates, JUDGED: len(self.bound.history.atlases.atlases)}

    def restore_judged(self, calls: Sequence[Call]) -> None:
        """Of calls that an earlier attempt judged. If an atlas was bound since, they are judged again."""
        judged_before = self.bound is not None and self._lease.progress.gates.get(JUDGED) == len(
            self.bound.history.atlases.atlases
        )
        for call in calls:
            call.judged_before = judged_before

    def forget(self, calls: Sequence[Call]) -> None:
        """Calls that are neither sent nor requested: the next attempt judges them again, and writes the gate events."""
        if self.bound is not None:
            ids = self.bound.forget(calls)
            if any(str(call.id) in ids and not call.judged_before for call in calls):
                progress = self._lease.progress
                progress.gates = {name: at for name, at in progress.gates.items() if name != JUDGED}

    def end_calls(self, calls: Sequence[Call], before: int | None = None) -> None:
        """Calls of the current step ended: gates after them fire once. ``before``: a position; None is all of them."""
        if self.bound is None:
            return
        progress = self._lease.progress
        since = progress.gates.get(AFTER, 0)
        upto = len(calls) if before is None else before
        self.bound.end_calls([call for call in calls if since <= call.position < upto])
        cursor = {name: at for name, at in progress.gates.items() if name != AFTER}
        if before is not None:
            cursor[AFTER] = max(since, upto)
        progress.gates = cursor

    def rule_on(self, call: Call, *, is_new: bool) -> Ruling | None:
        """The gates' ruling on a call; None where no gate applies. ``is_new``: questions are opened, and it is traced."""
        if self.bound is None or not governed(call):
            return None
        if is_new:
            return self.bound.judge_new(as_gated(call))
        has_approval = call.has_grant or call.status is CallStatus.APPROVED
        return self.bound.judge_again(
            as_gated(call, has_approval=has_approval), is_resend=call.settle_after is not None
        )

    def let_through(self, call: Call) -> None:
        """Gates do not stop the call: it is charged when it runs. A call that was sent before was charged then."""
        if self.bound is None or not governed(call) or call.settle_after is not None:
            return
        self.bound.let_through(call, has_approval=call.status is CallStatus.APPROVED)
        if call.kind is CallKind.READ and (self.bound.metered or self.bound.is_scarce(call)):
            # A call that uses something up leaves a row before it is sent, so that no two share it. Reading twice is harmless.
            call.kind, call.declaration = CallKind.EFFECT, OnUncertain.RETRY_WITH_KEY

    def explain_refusal(self, call: Call) -> None:
        """The error of a call that gates refused contains their questions."""
        ruling = call.ruling
        if self.bound is None or ruling is None or call.status is not CallStatus.REJECTED:
            return
        if ruling.verdict is PolicyVerdict.DENY:
            call.error = self.bound.dialogue.refusal_text(call, ruling)

    async def answer(self, calls: Sequence[Call]) -> None:
        """Settle the agent's calls to gates, after all other calls of the response were judged."""
        for call in calls:
            if self.bound is None or call.name not in PLANE_TOOLS or call.tool is None or call.settled:
                continue
            call.authorization = Authorization(BY_THE_PLANE)
            reply = (
                await self._check_answer(self.bound, call.values)
                if call.name == ANSWER
                else self.bound.dialogue.request_context(str(call.values["name"]))
            )
            call.kind, call.status = CallKind.READ, CallStatus.COMPLETED
            call.result = canonical(reply)

    async def _check_answer(self, gates: AttemptGates, values: Mapping[str, Any]) -> dict[str, Any]:
        answers: Mapping[str, Any] = values["answers"]
        target = gates.dialogue.answer_target(str(values["gate"]), values["call"])
        faults: dict[str, str | None] = {}
        if target.gate is not None:
            faults = await gate_code.run_validators(target.gate, self._lease.app.validators, answers)
        result = gates.dialogue.record_answer(target, answers, faults)
        if result.valid or target.which is None or gates.dialogue.waits_for(target.which):
            return result.told
        return {**result.told, "shut": True, "reason": "; ".join(map(str, result.told.get("faults", {}).values()))}

    # The prompt ------------------------------------------------------------------------------------------------

    def system_prompt(self, own: str | None) -> str | None:
        """A system prompt with the parts that gates add to it; the parts that rarely change come first."""
        if self.bound is None:
            return own
        parts = self.bound.dialogue.prompt
        return "\n\n".join(part for part in (parts.instructions, own, parts.knowledge) if part) or None

    @property
    def notice(self) -> str:
        """The questions that must be answered before anything else."""
        return self.bound.dialogue.prompt.questions if self.bound is not None else ""
