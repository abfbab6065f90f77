"""GovernanceService: what an agent that runs elsewhere may do, and what became of it."""

from __future__ import annotations

import hashlib
import time
from typing import Any
from uuid import UUID

import orjson
from grpc.aio import ServicerContext

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.model import MAX_WAIT, CallDraft, ExternalCall, Next, OutcomeDraft
from cortex_plane.calls.verbs import calls, outcomes
from cortex_plane.calls.verbs.calls import NO_DEMAND, CallDemand
from cortex_plane.grpc.calls import GrpcCaller, current_caller
from cortex_plane.grpc.messages import (
    THREAD_BYTES,
    approval_message,
    draft,
    in_thread,
    read_id,
    read_json,
    read_optional_id,
    read_seconds,
    timestamp,
)
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2, governance_pb2
from cortex_plane.grpc.upsquad.governance.v1.governance_pb2_grpc import GovernanceServiceServicer
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies.model.policies import TOOL_CALL, PolicyVerdict
from cortex_plane.policies.model.versions import RequestPolicy

Context = ServicerContext[Any, Any]
CallRequest = governance_pb2.CheckRequest | approval_pb2.RequestApprovalRequest

VERDICTS = {
    PolicyVerdict.ALLOW: governance_pb2.VERDICT_ALLOW,
    PolicyVerdict.DENY: governance_pb2.VERDICT_DENY,
    PolicyVerdict.REQUIRES_APPROVAL: governance_pb2.VERDICT_REQUIRES_APPROVAL,
}


class GovernanceDoor(GovernanceServiceServicer):
    async def Check(self, request: governance_pb2.CheckRequest, context: Context) -> governance_pb2.CheckResponse:
        caller = current_caller()
        # A schema is compiled.
        is_large = bool(request.parameters) or len(request.args) > THREAD_BYTES
        call = await in_thread(_read_check, caller, request) if is_large else _read_check(caller, request)
        demand, session_id = read_demand(request), read_id(request.session_id, "session_id")
        if request.look_only:
            preview = await calls.preview_call(caller.door.db, caller.actor, session_id, call, demand)
            return governance_pb2.CheckResponse(
                verdict=VERDICTS[preview.verdict],
                policy_id=preview.rule,
                reason=preview.reason or "",
                args=canonical(preview.arguments),
                input_hash=preview.input_hash,
            )
        return _answer(await calls.authorize_call(caller.door.db, caller.actor, session_id, call, demand))

    async def ResolveApproval(
        self, request: governance_pb2.ResolveApprovalRequest, context: Context
    ) -> governance_pb2.ResolveApprovalResponse:
        caller = current_caller()
        caller.require_own(org_id=request.org_id)
        id = read_id(request.approval_id, "approval_id")
        seconds = read_seconds(request.wait)
        if not 0 <= seconds <= MAX_WAIT:
            raise InvalidInput(f"`wait` is not between 0 and {MAX_WAIT:g} seconds.", field="wait")
        approval = (await approvals.get_approval(caller.door.db, caller.actor, id)).approval
        if approval.status is ApprovalStatus.PENDING and seconds:
            approval = await _wait_for_decision(caller, id, seconds)
        return governance_pb2.ResolveApprovalResponse(
            resolved=approval.status is not ApprovalStatus.PENDING,
            approval=approval_message(approval, caller.actor.org_id),
        )

    async def ReportOutcome(
        self, request: governance_pb2.ReportOutcomeRequest, context: Context
    ) -> governance_pb2.ReportOutcomeResponse:
        caller = current_caller()
        caller.require_own(org_id=request.org_id)
        is_large = len(request.result) > THREAD_BYTES
        outcome = await in_thread(_read_outcome, request) if is_large else _read_outcome(request)
        id = read_id(request.call_id, "call_id")
        receipt = await outcomes.settle_call(caller.door.db, caller.actor, id, outcome)
        return governance_pb2.ReportOutcomeResponse(
            status=receipt.status, approval_id=str(receipt.approval_id) if receipt.approval_id else ""
        )


def _read_check(caller: GrpcCaller, request: governance_pb2.CheckRequest) -> CallDraft:
    return read_call(
        caller,
        request,
        says=request.says,
        read_only=request.read_only,
        risk=request.risk,
        on_uncertain=request.on_uncertain,
        timeout_seconds=read_seconds(request.timeout) if request.HasField("timeout") else None,
        parameters=read_json(request.parameters, "parameters"),
        dispatch=request.dispatch,
        sender=request.sender,
    )


def _read_outcome(request: governance_pb2.ReportOutcomeRequest) -> OutcomeDraft:
    return draft(
        OutcomeDraft,
        status=request.status,
        result=read_json(request.result, "result"),
        error=request.error,
        attempt=request.attempt or None,
    )


def read_call(caller: GrpcCaller, request: CallRequest, **more: Any) -> CallDraft:
    """The call that a message asks about. Who asks is never read from it."""
    caller.require_own(org_id=request.org_id, member_id=request.member_id, clearance=request.clearance)
    if request.action_type not in ("", TOOL_CALL):
        raise InvalidInput(f"`action_type` is not {TOOL_CALL}.", field="action_type", hint=f"Send `{TOOL_CALL}`.")
    if request.target not in ("", request.tool_name):
        raise InvalidInput("`target` is not the tool.", field="target", hint="Leave it out, or send `tool_name`.")
    arguments = read_json(request.args, "args") if request.args else {}
    if not isinstance(arguments, dict):
        raise InvalidInput(
            "`args` is not an object.", field="args", hint='Send an object, such as `{"order": "A-17"}`.'
        )
    call = draft(
        CallDraft,
        {"tool": "tool_name", "arguments": "args", "key": "idempotency_key", "timeout_seconds": "timeout"},
        tool=request.tool_name,
        arguments=arguments,
        key=caller.idempotency_key(request.idempotency_key),
        **more,
    )
    digests = (hashlib.sha256(content).hexdigest() for content in (request.args, canonical(call.arguments)))
    if request.args_sha256 and request.args_sha256.lower() not in digests:
        raise InvalidInput("`args_sha256` is not the digest of `args`.", field="args_sha256")
    return call


def read_demand(request: CallRequest, **terms: Any) -> CallDemand:
    """``terms``: what it asks for besides the policies, which only tightens."""
    agent_id, team_id = read_optional_id(request.agent_id, "agent_id"), None
    if isinstance(request, approval_pb2.RequestApprovalRequest):
        team_id = read_optional_id(request.team_id, "team_id")
    present = {name: value for name, value in terms.items() if value not in ("", None)}
    if not present:
        return CallDemand(agent_id, team_id) if agent_id or team_id else NO_DEMAND
    policy = draft(
        RequestPolicy,
        {"clearance": "required_clearance", "timeout_seconds": "deadline"},
        name="request",
        target="*",
        effect=PolicyVerdict.REQUIRES_APPROVAL,
        **present,
    )
    return CallDemand(agent_id, team_id, policy)


def _answer(call: ExternalCall) -> governance_pb2.CheckResponse:
    """ALLOW only where the call may run now: whoever looks at nothing else runs nothing that is done, held or in doubt."""
    is_asked = call.next is Next.WAIT and call.approval_status is ApprovalStatus.PENDING
    verdict = governance_pb2.VERDICT_DENY
    if call.next in (Next.RUN, Next.BEGIN):
        verdict = governance_pb2.VERDICT_ALLOW
    elif is_asked:
        verdict = governance_pb2.VERDICT_REQUIRES_APPROVAL
    return governance_pb2.CheckResponse(
        verdict=verdict,
        approval_id=str(call.approval_id) if is_asked else "",
        call_id=str(call.id),
        policy_id=call.rule,
        reason=call.error or call.reason or "",
        next=call.next,
        args=canonical(call.arguments),
        input_hash=call.input_hash,
        deadline=timestamp(call.deadline) if is_asked else None,
        dispatch_before=timestamp(call.dispatch_before) if call.next is Next.RUN else None,
        attempt=call.attempt,
        result=orjson.dumps(call.result) if call.next is Next.USE else b"",
    )


async def _wait_for_decision(caller: GrpcCaller, id: UUID, seconds: float) -> Approval:
    ends = time.monotonic() + seconds

    async def read() -> Approval:
        return (await approvals.get_approval(caller.door.db, caller.actor, id)).approval

    caller.wait()
    with caller.door.feed.approvals(caller.actor.org_id) as live:
        while True:
            # Read again now that nothing new can be missed.
            approval = await caller.read(read)
            left = ends - time.monotonic()
            if approval.status is not ApprovalStatus.PENDING or left <= 0 or live.closed:
                return approval
            await live.take(left)
