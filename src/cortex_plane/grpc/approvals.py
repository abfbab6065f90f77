"""ApprovalService: ask for approvals, decide them, hand them on, list and follow them."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import AsyncGenerator
from typing import Any

from grpc.aio import ServicerContext

from cortex_plane.approvals.model.approvals import (
    ApprovalDecision,
    ApprovalStatus,
    Channel,
    Choice,
    DecisionReceipt,
    DelegationDraft,
    RecordResult,
)
from cortex_plane.approvals.verbs import approval_feed, approvals, decisions
from cortex_plane.approvals.verbs.approval_feed import ApprovalChanges, FeedCursor
from cortex_plane.calls.verbs.approval_inquiries import request_approval
from cortex_plane.grpc.calls import GrpcCaller, current_caller, not_of_the_caller
from cortex_plane.grpc.governance import read_call, read_demand
from cortex_plane.grpc.lifecycle import dropped
from cortex_plane.grpc.messages import (
    THREAD_BYTES,
    approval_message,
    draft,
    in_thread,
    now,
    read_id,
    read_optional_id,
    read_time,
    timestamp,
)
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2
from cortex_plane.grpc.upsquad.governance.v1.approval_pb2_grpc import ApprovalServiceServicer
from cortex_plane.kernel import pages
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import Position
from cortex_plane.sessions.verbs.event_reader import HEARTBEAT_SECONDS, finish

Context = ServicerContext[Any, Any]

CHOICES = {approval_pb2.DECISION_APPROVED: Choice.APPROVED, approval_pb2.DECISION_DENIED: Choice.DENIED}
RESULTS = {RecordResult.OK: approval_pb2.RECORD_RESULT_OK, RecordResult.DUPLICATE: approval_pb2.RECORD_RESULT_DUPLICATE}
LARGEST_PAGE, USUAL_PAGE = 200, 50
PAGE_BYTES = 2 * 1024 * 1024
"""A page ends before them, with one approval at least: clients refuse messages of more than 4 MiB."""
NOUN = "approvals"
"""Of the tokens of pages, which are the same as over HTTP."""
POLL_SECONDS = 5.0
"""Requests about changes of rules belong to no session, so no hint tells of them."""


class ApprovalDoor(ApprovalServiceServicer):
    async def RequestApproval(
        self, request: approval_pb2.RequestApprovalRequest, context: Context
    ) -> approval_pb2.RequestApprovalResponse:
        caller = current_caller()
        says = "\n".join(f"{name}: {text}" for name, text in request.metadata.items())
        is_large = len(request.args) > THREAD_BYTES
        call = (
            await in_thread(read_call, caller, request, says=says)
            if is_large
            else read_call(caller, request, says=says)
        )
        seconds = None
        if request.HasField("deadline"):
            seconds = math.floor(read_time(request.deadline, "deadline").timestamp() - time.time())
            if seconds < 1:
                raise InvalidInput("`deadline` is over already.", field="deadline")
        demand = read_demand(
            request,
            clearance=request.required_clearance or None,
            template=request.template,
            timeout_seconds=seconds,
            channels=list(request.channels) or None,
        )
        session_id = read_id(request.session_id, "session_id")
        inquiry = await request_approval(caller.door.db, caller.actor, session_id, call, demand)
        return approval_pb2.RequestApprovalResponse(
            approval_id=str(inquiry.approval.id),
            was_deduplicated=inquiry.deduplicated,
            deadline=timestamp(inquiry.approval.deadline),
            call_id=str(inquiry.call_id) if inquiry.call_id else "",
        )

    async def RecordDecision(
        self, request: approval_pb2.RecordDecisionRequest, context: Context
    ) -> approval_pb2.RecordDecisionResponse:
        caller = current_caller()
        db, actor = caller.door.db, caller.actor
        caller.require_own(org_id=request.org_id, operator_id=request.operator_id)
        if request.channel not in (approval_pb2.CHANNEL_UNSPECIFIED, approval_pb2.CHANNEL_API):
            raise not_of_the_caller("channel")
        if request.decision not in CHOICES:
            raise InvalidInput("`decision` is neither APPROVED nor DENIED.", field="decision")
        id, key = read_id(request.approval_id, "approval_id"), caller.idempotency_key(request.idempotency_key)
        version, input_hash = request.version, request.input_hash
        if not (version and input_hash):
            seen = (await approvals.get_approval(db, actor, id)).approval
            # Whoever names no version decides what was asked for at first. `decide` knows whether they did already.
            is_open = seen.status is ApprovalStatus.PENDING
            version, input_hash = version or (1 if is_open else seen.version), input_hash or seen.input_hash
        decision = draft(
            ApprovalDecision,
            decision=CHOICES[request.decision],
            version=version,
            input_hash=input_hash,
            reason=request.reason,
        )
        once = None
        if key is not None:
            digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
            once = IdempotencyKey(key=key, fingerprint=digest)
        try:
            receipt = await decisions.decide(db, actor, id, decision, Channel.API, once)
        except Conflict as error:
            if error.code != "approval_conflict":
                raise
            return await _conflict(caller, id)
        return _recorded(caller, receipt)

    async def Delegate(self, request: approval_pb2.DelegateRequest, context: Context) -> approval_pb2.DelegateResponse:
        caller = current_caller()
        caller.require_own(org_id=request.org_id, from_member_id=request.from_member_id)
        delegation = draft(
            DelegationDraft,
            {"to": "to_member_id"},
            to=read_id(request.to_member_id, "to_member_id"),
            reason=request.reason,
        )
        id = read_id(request.approval_id, "approval_id")
        approval = await approvals.delegate(caller.door.db, caller.actor, id, delegation)
        return approval_pb2.DelegateResponse(approval=approval_message(approval, caller.actor.org_id))

    async def GetApproval(self, request: approval_pb2.GetApprovalRequest, context: Context) -> approval_pb2.Approval:
        caller = current_caller()
        caller.require_own(org_id=request.org_id)
        id = read_id(request.approval_id, "approval_id")
        details = await approvals.get_approval(caller.door.db, caller.actor, id)
        return approval_message(details.approval, caller.actor.org_id, details.delegations)

    async def ListApprovals(
        self, request: approval_pb2.ListApprovalsRequest, context: Context
    ) -> approval_pb2.ListApprovalsResponse:
        caller = current_caller()
        caller.require_own(org_id=request.org_id)
        if not 0 <= request.page_size <= LARGEST_PAGE:
            raise InvalidInput(f"`page_size` is not between 1 and {LARGEST_PAGE}.", field="page_size")
        page = await approvals.list_approvals(
            caller.door.db,
            caller.actor,
            pages.decode_position(NOUN, request.page_token or None),
            request.page_size or USUAL_PAGE,
            status=_status(request.status),
            session_id=read_optional_id(request.session_id, "session_id"),
            job_id=read_optional_id(request.job_id, "job_id"),
        )
        answer, position = approval_pb2.ListApprovalsResponse(), page.next
        size = 0
        for number, approval in enumerate(page.items):
            message = approval_message(approval, caller.actor.org_id)
            size += message.ByteSize()
            if number and size > PAGE_BYTES:
                last = page.items[number - 1]
                position = Position(created_at=last.requested_at, id=last.id)
                break
            answer.approvals.append(message)
        answer.next_page_token = pages.encode_position(NOUN, position) or ""
        return answer

    async def WatchApprovals(
        self, request: approval_pb2.WatchApprovalsRequest, context: Context
    ) -> AsyncGenerator[approval_pb2.WatchApprovalsResponse, None]:
        caller = current_caller()
        caller.require_own(org_id=request.org_id)
        after = FeedCursor.parse(request.after) if request.after else None
        look = await finish(_changes(caller, after))
        caller.wait()
        with caller.door.feed.approvals(caller.actor.org_id) as live:
            # Not behind what this look found: that is not sent yet.
            yield _alive(after or look.cursor)
            due = time.monotonic() + HEARTBEAT_SECONDS
            while not live.closed and not live.overflowed:
                for change in look.changes:
                    event = approval_pb2.ApprovalEvent(
                        type=change.type,
                        created_at=timestamp(change.created_at),
                        approval=approval_message(change.approval, caller.actor.org_id),
                    )
                    yield approval_pb2.WatchApprovalsResponse(cursor=str(change.cursor), event=event)
                if time.monotonic() >= due:
                    due = time.monotonic() + HEARTBEAT_SECONDS
                    await finish(caller.check_access())
                    yield _alive(look.cursor)
                if not look.more:
                    await live.take(min(POLL_SECONDS, max(0.0, due - time.monotonic())))
                look = await caller.read(functools.partial(_changes, caller, look.cursor))
        raise dropped("slow_reader" if live.overflowed else "shutdown")


async def _changes(caller: GrpcCaller, cursor: FeedCursor | None) -> ApprovalChanges:
    return await approval_feed.changes_of_approvals(caller.door.db, caller.actor, cursor)


def _alive(cursor: FeedCursor) -> approval_pb2.WatchApprovalsResponse:
    return approval_pb2.WatchApprovalsResponse(cursor=str(cursor), keepalive=approval_pb2.ApprovalKeepAlive(at=now()))


def _status(text: str) -> ApprovalStatus | None:
    if not text:
        return None
    try:
        return ApprovalStatus(text)
    except ValueError:
        raise InvalidInput(f"`status` is none of {', '.join(ApprovalStatus)}.", field="status") from None


def _recorded(caller: GrpcCaller, receipt: DecisionReceipt) -> approval_pb2.RecordDecisionResponse:
    message = approval_message(receipt.approval, caller.actor.org_id)
    return approval_pb2.RecordDecisionResponse(result=RESULTS[receipt.result], approval=message)


async def _conflict(caller: GrpcCaller, id: Any) -> approval_pb2.RecordDecisionResponse:
    details = await approvals.get_approval(caller.door.db, caller.actor, id)
    message = approval_message(details.approval, caller.actor.org_id, details.delegations)
    return approval_pb2.RecordDecisionResponse(result=approval_pb2.RECORD_RESULT_CONFLICT, approval=message)
