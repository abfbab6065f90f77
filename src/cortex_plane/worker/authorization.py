"""Authorizes the calls of an attempt: by gates, policies, standing approvals, and approvals that people gave before.

Before a call that a person approved is sent its receipt is checked. A row of an approval could have been written by anybody
who can write to the database; a receipt is signed with a key that only the plane can open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import structlog

from cortex_plane.calls.rules import pipeline
from cortex_plane.calls.verbs.earlier_approvals import cover_call, receipt_fault
from cortex_plane.gates.model.gates import PLANE_TOOLS
from cortex_plane.gates.rules.authorization import Authorization, StandingUse
from cortex_plane.jobs.model.effects import REPEATS_OF_A_GRANT, STEP, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import Hold
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.errors import Conflict
from cortex_plane.policies.model.policies import PolicyRow, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof.rules.receipts import Stamp
from cortex_plane.worker.calls import ASK, Call, CallKind, apply_authorization, apply_row
from cortex_plane.worker.ends import Ended, JobHeld, JobSleeps
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.mcp.remote_tool import RemoteTool
from cortex_plane.worker.questions import ASK_PERSON_TOOL, model_demand
from cortex_plane.worker.session_gates import BY_THE_PLANE, SessionGates

log = structlog.get_logger()

SERVER_SECONDS = 5.0
"""Until an MCP server that is down is looked at again."""


class CallAuthorizer:
    def __init__(self, lease: Lease, gates: SessionGates) -> None:
        self._lease, self._gates = lease, gates
        self._request_rows = request_rows(lease.assignment.request_policies)
        self.standing_uses: dict[UUID, StandingUse] = {}
        """By call: the standing approval that covered it when this attempt asked."""
        self.refusals: set[tuple[str, str]] = set()
        """Name and input hash of calls that a person refused: they do not come back unchanged."""
        self.receipts: dict[UUID, Stamp] = {}
        """By call: of those that somebody approved."""
        self.demands: dict[UUID, PolicyRow] = {}
        """By call of a code agent: what it asks of people beyond the policies."""

    async def authorize(self, calls: Sequence[Call]) -> None:
        """Judge each call by the policies and gates that hold now. All calls are judged by the state of the gates before
        the response: answers in the same response come after that."""
        uses: Counter[UUID] = Counter()
        gates = self._gates
        if gates.bound is not None:
            gates.bound.begin_response()
        for call in calls:
            if call.kind is CallKind.REFUSED or call.name in PLANE_TOOLS:
                continue
            authorization = await self.judge(call, is_new=True)
            if authorization.verdict is not PolicyVerdict.DENY:
                # Before anything is awaited: no other branch may count on what lets this one through.
                gates.let_through(call)
            if authorization.verdict is PolicyVerdict.REQUIRES_APPROVAL:
                authorization = await self._cover(call, authorization, uses)
                if authorization.leaning is not None:
                    uses[authorization.leaning.standing_id] += not authorization.leaning.counted
            apply_authorization(call, authorization)
            gates.explain_refusal(call)
            if call.settled and gates.bound is not None:
                gates.bound.withdraw(call)
        await gates.answer(calls)

    async def judge(self, call: Call, *, is_new: bool = False) -> Authorization:
        """By gates and policies, without standing approvals. ``is_new``: gates open their questions."""
        # By call: branches of a job may judge theirs by different policies, and learn of newer ones meanwhile.
        lease = self._lease
        call.policies = lease.policies_version = lease.newest_policies
        self.standing_uses.pop(call.id, None)
        if call.name == STEP:
            return Authorization(BY_THE_PLANE)
        policies = await self.policies_at(call.policies)
        self._apply_confirmation(call, policies)
        call.ruling = self._gates.rule_on(call, is_new=is_new)
        # A question to people may be asked again after a no: nothing is sent by it, and its agent decides what a no means.
        is_question = call.name in (ASK, ASK_PERSON_TOOL.name)
        demand = self.demands.get(call.id)
        if demand is None and call.name == ASK_PERSON_TOOL.name:
            demand = model_demand(call.arguments)
        return pipeline.judge_call(
            policies, lease.assignment, call, self._request_rows, read_only=self._only_reads(call), ruling=call.ruling,
            refused_before=not is_question and (call.name, call.input_hash) in self.refusals,
            demand=demand if is_question else None,
        )  # fmt: skip

    def _apply_confirmation(self, call: Call, policies: CompiledPolicies) -> None:
        """What a steward confirmed about a remote tool. Each time: confirmations come and go with the policies. A call in
        the ledger stays what it was written as; only its judgement follows."""
        if not isinstance(call.tool, RemoteTool) or call.digest is None:
            return
        app, toolbox = self._lease.assignment.app, self._lease.toolbox
        call.tool = call.tool.trusted(policies.confirmed.get((app, call.name, call.digest)))
        if call.status is None and not call.has_row:
            call.kind = CallKind.EFFECT if toolbox.has_side_effects(call.tool) else CallKind.READ
            call.declaration = None

    async def policies_at(self, version: str) -> CompiledPolicies:
        """If somebody changed them by hand nothing is allowed: the job is held."""
        lease = self._lease
        try:
            return await book.at(lease.db, lease.assignment.org_id, version)
        except Conflict as error:
            if error.code != "policy_corrupt":
                raise
            why = f"{error.message} {error.hint} Then `cortex job resume` it."
            log.error("policies unreadable", job_id=str(lease.assignment.job_id), reason=why)
            raise Ended(JobHeld(Hold.POLICIES_UNREADABLE, {"why": why}, StepWrite(error=why))) from error

    def _only_reads(self, call: Call) -> bool:
        is_strict = call.ruling is not None and call.ruling.strict
        return not is_strict and not self._lease.toolbox.has_side_effects(call.code)

    async def _cover(self, call: Call, authorization: Authorization, uses: Mapping[UUID, int]) -> Authorization:
        """With the standing approval that the call may use, if it needs a person's yes and nobody said no."""
        lease = self._lease
        authorization, notes = await cover_call(
            lease.db, lease.assignment, call, authorization, lease.fact, read_only=self._only_reads(call), reserved=uses,
            read_to=lease.progress.message_seq,
        )  # fmt: skip
        lease.notes += notes
        if authorization.leaning is not None:
            self.standing_uses[call.id] = authorization.leaning
        return authorization

    async def restore_call(self, call: Call, row: ToolCall) -> bool:
        """What became of a call meanwhile. True: it must be authorised as if nobody had been asked about it yet."""
        error = call.error
        apply_row(call, row)
        # A call that was sent with an approval is sent again with it only if its receipt is true.
        refusal = self.receipt_refusal(call, is_resend=True) if call.has_grant else None
        if refusal is not None:
            call.has_grant = False
            self._note("receipt_refused", call, refusal)
        if row.status is CallStatus.CLEARED and call.tool is not None:
            if call.has_grant and row.repeats > REPEATS_OF_A_GRANT:
                why = "it was sent again before because somebody answered that it did not happen"
                self._note("approval_outgrown", call, why)
                call.has_grant = False
            if await self.may_be_sent_again(call):
                return False
            reset_call(call)
            return True
        if row.status is CallStatus.APPROVED and call.tool is not None:
            if await self._is_outgrown(call, row):
                reset_call(call)
                return True
            self._gates.let_through(call)
            if (obstacle := await call.code.obstacle()) is not None:
                # An approved call waits for its server: nothing is sent, so the approval is kept.
                raise Ended(JobSleeps(SERVER_SECONDS, obstacle))
            return False
        if row.status is CallStatus.APPROVED and self.has_same_code(row):
            # An edit that fits the schema and not the tool: only its code could tell.
            call.status, call.error, call.has_row = CallStatus.REJECTED, error, False
        return False

    async def may_be_sent_again(self, call: Call) -> bool:
        authorization = await self.judge(call)
        if authorization.verdict is PolicyVerdict.REQUIRES_APPROVAL and not call.has_grant:
            authorization = await self._cover(call, authorization, {})
        return pipeline.may_be_sent_again(authorization, call.ruling, has_grant=call.has_grant)

    async def _is_outgrown(self, call: Call, row: ToolCall) -> bool:
        """Whether an approval is out of date: other code, another time, another gate, or a policy that denies the call."""
        verdict, now = (await self.judge(call)).verdict, self._lease.time.now()
        is_same = call.digest == row.tool_digest
        why = pipeline.outgrown_reason(verdict, call.ruling, row.grant_expires_at, now, is_same_tool=is_same)
        if why is not None:
            self._note("approval_outgrown", call, why)
        return why is not None or verdict is PolicyVerdict.DENY

    def has_same_code(self, row: ToolCall) -> bool:
        return self._lease.toolbox.digests.get(row.tool_name) == row.tool_digest

    def receipt_refusal(self, call: Call, *, is_resend: bool) -> str | None:
        """Why an approved call must not be sent; None if its receipt is true. ``is_resend``: it was sent, in time, before."""
        lease = self._lease
        stamp, now = self.receipts.get(call.id), None if is_resend else lease.time.now()
        return receipt_fault(lease.worker.vault, lease.assignment.org_id, call, stamp, now)

    def _note(self, action: str, call: Call, reason: str) -> None:
        self._lease.notes.append(pipeline.call_fact(self._lease.fact, action, call, reason=reason))


def reset_call(call: Call) -> Call:
    """As if nobody had been asked about it yet."""
    call.status, call.has_row, call.has_grant, call.settle_after = None, False, False, None
    call.asked_before = True
    return call
