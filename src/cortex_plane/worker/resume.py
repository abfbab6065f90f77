"""Resumes a job: from its checkpoint, what its calls became meanwhile, and by which policies it goes on."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.agents import PromptChange, SkillSettings
from cortex_plane.agents.model.completions import Turn, UserTurn
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.db.vault import Vault
from cortex_plane.gates.model.gates import PLANE_TOOLS
from cortex_plane.gates.rules.authorization import Authorization, StandingUse, authorize, leaning_on
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import REPEATS_OF_A_GRANT, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import Hold, JobKind, JobStatus
from cortex_plane.jobs.rules.attempts import Assignment, StepWrite, WriteResult
from cortex_plane.jobs.rules.recovery import CheckpointCorrupt, open_sealed
from cortex_plane.jobs.store import PastSteps
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.errors import Conflict
from cortex_plane.policies.model.policies import CallFacts, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof.rules.receipts import Stamp
from cortex_plane.sessions.rules import Thread, as_sent, opening, rebuilt, requests_of
from cortex_plane.worker import approval_requests, step_events
from cortex_plane.worker.calls import Call, CallKind, Toolbox, authorized, leans, plan_call, restored
from cortex_plane.worker.gate_code import with_gate_tools
from cortex_plane.worker.lease import Ended, Progress, WorkerContext
from cortex_plane.worker.mcp.remote_tool import RemoteTool
from cortex_plane.worker.session_gates import Governed
from cortex_plane.worker.tools.app import App

log = structlog.get_logger()

SERVER_SECONDS = 5.0
"""Until an MCP server that is down is looked at again."""


class Opening(Governed):
    """A job that was just leased, from its checkpoint to the point where it goes on."""

    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        super().__init__(host, given)
        self.turns = Thread()
        """What was said, as far as no memory covers it."""
        self.toolbox = toolbox_of(host.apps[given.app], self.limits.skills)
        self.turned_down: set[tuple[str, str]] = set()
        """Calls that a person said no to: they do not come back unchanged."""
        self.leaning: dict[UUID, StandingUse] = {}
        """Calls that a standing approval covered when this attempt asked."""
        self.receipts: dict[UUID, Stamp] = {}
        """By call: of those that somebody approved."""
        self._request_rows = request_rows(given.request_policies)

    # Permission ------------------------------------------------------------------------------------------------

    async def authorize(self, calls: Sequence[Call]) -> None:
        """Ask the one door about each call, by the policies and gates that hold now as far as we know.

        All calls are judged by what gates knew before them: what the agent answers in the same response comes after that.
        """
        taken: Counter[UUID] = Counter()
        if self.gates is not None:
            self.gates.begin()
        for call in calls:
            if call.kind is CallKind.REFUSED or call.name in PLANE_TOOLS:
                continue
            answer = await self.judged(call, new=True)
            if answer.verdict is not PolicyVerdict.DENY:
                # Before anything is waited for: no other branch may count on what lets this one through.
                self.let_through(call)
            leaning = await self._covered(call, answer, taken)
            if leaning is not None:
                answer = leaning_on(answer, leaning)
                taken[leaning.standing_id] += not leaning.counted
            authorized(call, answer)
            self.explain(call)
            if call.settled and self.gates is not None:
                self.gates.take_back(call)
        await self.answer(calls)

    async def judged(self, call: Call, *, new: bool = False) -> Authorization:
        """What gates and policies say; people's standing approvals are not asked. ``new``: gates ask what they have to ask."""
        # By call: several branches of a job may judge theirs by different policies, and hear of newer ones meanwhile.
        call.policies = self.policies_version = self.policies_heard
        policies = await self.policies_at(call.policies)
        as_confirmed(call, policies, self.given.app, self.toolbox)
        call.ruling = self.ruled(call, new=new)
        return authorize(
            policies, self._facts(call), self._request_rows, turned_down=self.was_turned_down(call),
            ruling=call.ruling,
        )  # fmt: skip

    async def policies_at(self, version: str) -> CompiledPolicies:
        """Where somebody changed them by hand nothing is allowed: the job is held, and says why."""
        try:
            return await book.at(self.host.db, self.given.org_id, version)
        except Conflict as error:
            if error.code != "policy_corrupt":
                raise
            await self._unreadable_policies(error)

    async def _unreadable_policies(self, error: Conflict) -> NoReturn:
        why = f"{error.message} {error.hint} Then `cortex job resume` it."
        log.error("policies unreadable", job_id=str(self.given.job_id), reason=why)
        await self.hold(Hold.POLICIES_UNREADABLE, {"why": why}, StepWrite(error=why))

    def was_turned_down(self, call: Call) -> bool:
        return (call.name, call.input_hash) in self.turned_down

    def _facts(self, call: Call) -> CallFacts:
        return CallFacts(
            target=call.name,
            arguments=orjson.loads(call.arguments),
            read_only=not self.toolbox.has_side_effects(call.code)
            and not (call.ruling is not None and call.ruling.strict),
            risk=call.risk,
            agent=self.given.agent,
            teams=tuple(self.given.teams),
            session_kind=self.given.session_kind,
        )

    async def _covered(
        self, call: Call, answer: Authorization, taken: Mapping[UUID, int]
    ) -> StandingUse | None:
        """The standing approval that a call may lean on, where it needs a person's yes and nobody said no."""
        self.leaning.pop(call.id, None)
        terms = answer.decision.terms
        if answer.verdict is not PolicyVerdict.REQUIRES_APPROVAL or terms is None or not terms.standing:
            return None
        if call.digest is None:
            return None
        uncovered = standing_approvals.Uncovered(
            call_id=call.id, tool_name=call.name, tool_digest=call.digest, input_hash=call.input_hash,
            facts=self._facts(call), terms=terms,
        )  # fmt: skip
        found = await standing_approvals.cover(
            self.host.db, self.given, self.at.message_seq, uncovered, taken, Vault(self.host.master_key)
        )
        for standing_id, why in found.refused:
            self.notes.append(approval_requests.standing_refused(self, call, standing_id, why))
        if found.leaning is not None:
            self.leaning[call.id] = found.leaning
        return found.leaning

    async def write(self, write: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        """Whatever is sent on a standing approval names it: it is looked at once more, and counted, in the same commit."""
        if write.dispatches and self.leaning:
            self._lean(write)
        return await super().write(write, keep_checkpoint=keep_checkpoint)

    def _lean(self, write: StepWrite) -> None:
        again = [
            {"id": str(id), **leans(on)} for id in write.again if (on := self.leaning.get(id)) is not None
        ]
        if again:
            write.granted = orjson.dumps([*orjson.loads(write.granted or b"[]"), *again])
        used = [
            self.fact(
                "standing_used", standing=row["standing_id"], call=row["id"], tool=row["tool"],
                digest=row["digest"], input_hash=row["input_hash"],
            )
            for row in orjson.loads(write.calls or b"[]")
            if "standing_id" in row
        ]  # fmt: skip
        write.facts = [*write.facts, *used]

    # State -----------------------------------------------------------------------------------------------------

    async def open(self) -> PastSteps:
        """Where the job stopped; whatever does not fit ends it, and nothing is repaired."""
        given = self.given
        action = "job_started" if given.checkpoint is None else "job_resumed"
        self.notes.append(self.fact(action, epoch=given.epoch, worker=self.host.worker_name))
        if given.checkpoint is not None:
            try:
                opened = open_sealed(
                    given.checkpoint, mac=given.checkpoint_mac, job_id=given.job_id, agent_id=given.agent_id,
                    key=self.key,
                )  # fmt: skip
            except CheckpointCorrupt as error:
                log.error(
                    "checkpoint corrupt", jobId=str(given.job_id), agentId=str(given.agent_id),
                    corruptionType=error.corruption_type, error=error.message,
                )  # fmt: skip
                await self._fail_unopened(error)
            self.at = Progress.of(opened)
            if self.at.status is CheckpointStatus.AWAITING_APPROVAL:
                self.at.status = CheckpointStatus.IN_PROGRESS
        past = await self._recall()
        await self.govern(past.said)
        # Before a model is asked for anything: what it answers is lost where the job is held.
        await self.policies_at(self.policies_version)
        if self.gates is not None:
            self.toolbox = with_gate_tools(self.toolbox)
        await self._check_prompt()
        return past

    async def _recall(self) -> PastSteps:
        """What was said and done, as far as the job's memory does not cover it."""
        given, at = self.given, self.at
        if given.checkpoint is None:
            at.message_seq = given.message_seq if given.kind is JobKind.CONVERSATION else 0
        past = await workers.list_past_steps(
            self.host.db, given, at.message_seq, at.window_step, at.window_seq
        )
        if past.memory is not None:
            at.window_seq, at.conversation_summary = past.memory["message_seq"], past.memory["summary"]
            at.accumulated_facts = tuple(past.memory["facts"])
        self.receipts, self.turned_down = past.receipts, past.turned_down
        by_step: dict[int, list[ToolCall]] = {}
        for call in past.calls:
            by_step.setdefault(call.step_index, []).append(call)
        asked: Turn | None = None if past.asked is None else UserTurn(past.asked)
        if given.kind is JobKind.TASK:
            asked = opening(given.payload)
        self.turns = rebuilt(given.job_id, past.said, past.steps, by_step, at.step, asked)
        return past

    async def _fail_unopened(self, error: CheckpointCorrupt) -> NoReturn:
        """The checkpoint stays as it was found: the next write leaves it alone."""
        message = f"Checkpoint corruption detected: {error.message} (job {self.given.job_id}, not resumed) {error.hint}"
        facts = [self.fact("checkpoint_corrupt", type=error.corruption_type, error=error.message)]
        await self.write(
            StepWrite(
                status=JobStatus.FAILED,
                error=message,
                events=step_events.failed(message),
                facts=facts,
            ),
            keep_checkpoint=True,
        )
        raise Ended

    async def _check_prompt(self) -> None:
        if self.at.prompt_hash == self.prompt_hash:
            return
        change = self.limits.on_prompt_change
        self.notes.append(self.fact("prompt_changed", decision=change))
        if change is PromptChange.FAIL:
            await self.fail(
                "The agent's prompt changed since the job began.",
                "`cortex job resubmit` starts it again with the new prompt.",
            )
        self.at.prompt_hash = self.prompt_hash
        if change is PromptChange.HOLD:
            # Whoever resumes it says that the new prompt is fine: it is the one that is kept.
            await self.hold(Hold.PROMPT_CHANGED, {"prompt": "changed"})

    async def restore(self, recorded: dict[str, Any], rows: Sequence[ToolCall]) -> list[Call]:
        """The calls of a step that an earlier attempt began."""
        ids = [tool.invocation_id for tool in self.at.active_tools]
        known = {row.position: row for row in rows}
        calls, unknown = [], []
        if self.gates is not None and self.gates.unmet:
            # Its session was bound to more since: what fires at a start comes before what is sent.
            await self.look()
        for position, request in enumerate(as_sent(requests_of(recorded), known)):
            row = known.get(position)
            call = plan_call(position, request, row.id if row else ids[position], self.toolbox, self.at.step)
            calls.append(call)
            if row is None or await self.restore_call(call, row):
                unknown.append(call)
        self.recall_told(unknown)
        await self.authorize(unknown)
        self.tell_once()
        for call in unknown:
            if call.kind is CallKind.REFUSED:
                # What was refused then has its row. This one was fine, so it is the code that changed.
                call.status = None
        return calls

    async def restore_call(self, call: Call, row: ToolCall) -> bool:
        """What became of a call meanwhile. True: it must be authorised as if nobody had been asked about it yet."""
        said = call.error
        restored(call, row)
        self._check_receipt(call)
        if row.status is CallStatus.CLEARED and call.tool is not None:
            if call.granted and row.repeats > REPEATS_OF_A_GRANT:
                why = "it was sent again before because somebody answered that it did not happen"
                self.notes.append(
                    self.fact("approval_outgrown", call=str(call.id), tool=call.name, reason=why)
                )
                call.granted = False
            if await self.may_be_sent_again(call):
                return False
            _anew(call)
            return True
        if row.status is CallStatus.APPROVED and call.tool is not None:
            if await self._outgrown(call, row):
                return True
            self.let_through(call)
            await self._require_server(call)
            return False
        if row.status is CallStatus.APPROVED and self.is_the_code_of(row):
            # An edit that fits the schema and not the tool: only its code could tell.
            call.status, call.error, call.written = CallStatus.REJECTED, said, False
        return False

    async def _require_server(self, call: Call) -> None:
        """What somebody approved waits for its server: nothing is sent, so the approval is kept."""
        why = await call.code.obstacle()
        if why is not None:
            await self.sleep(SERVER_SECONDS, why)

    def _check_receipt(self, call: Call) -> None:
        """What was sent with an approval is sent again with it only if its receipt is true."""
        wrong = approval_requests.receipt_refusal(self, call, sent=True) if call.granted else None
        if wrong is not None:
            call.granted = False
            self.notes.append(self.fact("receipt_refused", call=str(call.id), tool=call.name, reason=wrong))

    async def may_be_sent_again(self, call: Call) -> bool:
        """A call that was sent before needs permission of this moment, or the very approval that it was sent with.

        A standing approval is that only where it was counted for this call, and while it lasts: it is not counted twice.
        """
        answer = await self.judged(call)
        if answer.verdict is not PolicyVerdict.REQUIRES_APPROVAL:
            self.leaning.pop(call.id, None)
            return answer.verdict is PolicyVerdict.ALLOW
        if call.granted:
            # Unless a gate stands before it by now that nobody was shown.
            return call.ruling is None or call.ruling.verdict is not PolicyVerdict.REQUIRES_APPROVAL
        leaning = await self._covered(call, answer, {})
        return leaning is not None and leaning.counted

    async def _outgrown(self, call: Call, row: ToolCall) -> bool:
        """Whether an approval does not fit any more: other code, another time, another gate, or a policy that denies it by now."""
        why: str | None = None
        if row.grant_expires_at is None or row.grant_expires_at <= self.time.now():
            why = "its grant has expired"
        elif call.digest != row.tool_digest:
            why = "its tool has changed"
        elif (await self.judged(call)).verdict is not PolicyVerdict.DENY:
            if call.ruling is None or call.ruling.verdict is not PolicyVerdict.REQUIRES_APPROVAL:
                return False
            why = "whoever approved it was not shown a gate that a person must pass by now"
        if why is not None:
            self.notes.append(self.fact("approval_outgrown", call=str(call.id), tool=call.name, reason=why))
        _anew(call)
        return True

    def is_the_code_of(self, row: ToolCall) -> bool:
        return self.toolbox.digests.get(row.tool_name) == row.tool_digest

    async def check_code(self, calls: Sequence[Call]) -> None:
        """A deploy must not fail parked work: a call whose tool is gone waits for an operator."""
        gone = [call.name for call in calls if call.tool is None and not call.settled]
        if gone:
            await self.hold(Hold.CODE_CHANGED, {"tools": gone})


def _anew(call: Call) -> Call:
    """As if nobody had been asked about it yet."""
    call.status, call.written, call.granted, call.settle_after = None, False, False, None
    call.asked_before = True
    return call


def toolbox_of(app: App, skills: SkillSettings) -> Toolbox:
    return _toolbox(app, app.revision, skills)


@functools.lru_cache(maxsize=256)
def _toolbox(app: App, _revision: int, skills: SkillSettings) -> Toolbox:
    """The same for every job of an agent version, and not cheap: schemas and digests of all its tools."""
    tools = {t.provider_name: t for t in app.tools.values() if skills.tools is None or t.name in skills.tools}
    return Toolbox(
        tools=tools,
        specs=[tool.spec for tool in tools.values()],
        digests={version.name: version.digest for version in app.versions},
        side_effect_tools=skills.side_effect_tools,
    )


def as_confirmed(call: Call, policies: CompiledPolicies, app: str, toolbox: Toolbox) -> None:
    """Before it is judged, each time: confirmations come and go as policies do, and are kept with them.

    A call that the ledger knows stays what it was written as; only what is judged of it is of today.
    """
    if not isinstance(call.tool, RemoteTool) or call.digest is None:
        return
    call.tool = call.tool.trusted(policies.confirmed.get((app, call.name, call.digest)))
    if call.status is None and not call.written:
        call.kind = CallKind.EFFECT if toolbox.has_side_effects(call.tool) else CallKind.READ
        call.declared = None
