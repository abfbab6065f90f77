"""The gRPC door, by a client over a socket: each call to the database and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import calls
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.grpc import approvals as approval_door
from cortex_plane.grpc import calls as grpc_calls
from cortex_plane.grpc import server as grpc_server
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2, governance_pb2
from cortex_plane.grpc.upsquad.runtime.v1 import lifecycle_pb2
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import Template
from cortex_plane.proof import store as proof_store
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.sessions.verbs import event_reader
from cortex_plane.sessions.verbs import sessions as session_verbs
from cortex_plane.tenancy.model.access import Fact
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame, keys
from cortex_plane.tenancy.verbs.frame import RequestRates
from grpc import aio
from tests.fixtures import external_gates
from tests.fixtures.people import Person, World, apply_policies
from tests.grpc.door import Client, Door, open_door, refused
from tests.http.test_http_events import until

POLICIES = """
policies:
  - {name: mails, target: "mail.*", effect: deny, reason: No mails today.}
  - {name: refunds, target: "refunds.*", effect: requires_approval, approvers: {roles: [approver, admin]}, timeout: 1h}
  - {name: rest, target: "*", effect: allow}
"""
ARGS = b'{"order": "A-1", "cents": 500}'


@pytest_asyncio.fixture
async def door(world: World) -> AsyncIterator[Door]:
    await apply_policies(world.db, world.admin.actor, POLICIES)
    async with open_door(world.db) as door:
        yield door


@pytest_asyncio.fixture
async def channel(door: Door) -> AsyncIterator[aio.Channel]:
    async with door.channel() as channel:
        yield channel


@pytest_asyncio.fixture
async def client(world: World, channel: aio.Channel) -> Client:
    return Client(channel, world.admin)


async def opened(world: World, person: Person | None = None) -> str:
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    return str((await session_lifecycle.create(world.db, (person or world.admin).actor, draft)).id)


def check(session: str, tool: str = "refunds.create", **more: Any) -> governance_pb2.CheckRequest:
    return governance_pb2.CheckRequest(session_id=session, tool_name=tool, **{"args": ARGS, **more})


async def asked(client: Client, session: str, **more: Any) -> governance_pb2.CheckResponse:
    answer: governance_pb2.CheckResponse = await client.call(client.governance.Check, check(session, **more))
    assert answer.verdict == governance_pb2.VERDICT_REQUIRES_APPROVAL
    return answer


async def count(db: Database, org: UUID, table: str) -> int:
    async with db.transaction(org) as tx:
        (row,) = await tx.rows(f"select count(*)::integer as n from {table}")
    return int(row["n"])


@pytest.mark.proves("S4.40")
async def test_a_call_is_checked_decided_run_and_reported(world: World, client: Client) -> None:
    approver = await world.person(Role.APPROVER, clearance=3)
    decider = Client(client.channel, approver)
    session = await opened(world)
    once = check(session, idempotency_key="refund-1", says="The parcel is lost.", dispatch=True)
    first = await client.call(client.governance.Check, once)
    assert (first.verdict, first.next) == (governance_pb2.VERDICT_REQUIRES_APPROVAL, "wait")
    assert first.policy_id.startswith("org:refunds@")
    assert await client.call(client.governance.Check, once) == first, "the same key is the same call"
    # As the specification's middleware does it: the approval is there already.
    request = approval_pb2.RequestApprovalRequest(session_id=session, tool_name="refunds.create", args=ARGS)
    again = await client.call(client.approvals.RequestApproval, request)
    assert (again.approval_id, again.was_deduplicated, again.call_id) == (first.approval_id, True, "")

    seen = await decider.call(
        decider.approvals.GetApproval, approval_pb2.GetApprovalRequest(approval_id=first.approval_id)
    )
    assert (seen.status, seen.may_decide, json.loads(seen.args)) == ("pending", True, json.loads(ARGS))
    assert (seen.org_id, seen.session_id, seen.version) == (str(world.org_id), session, 1)
    decision = approval_pb2.RecordDecisionRequest(
        approval_id=first.approval_id, decision=approval_pb2.DECISION_APPROVED, reason="Known customer.",
        version=seen.version, input_hash=seen.input_hash, org_id=str(world.org_id), operator_id=str(approver.member_id),
        channel=approval_pb2.CHANNEL_API, idempotency_key="d-1",
    )  # fmt: skip
    recorded = await decider.call(decider.approvals.RecordDecision, decision)
    assert recorded.result == approval_pb2.RECORD_RESULT_OK
    assert (recorded.approval.status, recorded.approval.resolved_by) == ("approved", str(approver.member_id))
    repeated = await decider.call(decider.approvals.RecordDecision, decision)
    assert repeated.result == approval_pb2.RECORD_RESULT_DUPLICATE
    decision.decision = approval_pb2.DECISION_DENIED
    assert (await refused(decider.call(decider.approvals.RecordDecision, decision))).reason == "idempotency_key_reused"
    decision.idempotency_key = ""
    other = await decider.call(decider.approvals.RecordDecision, decision)
    assert (other.result, other.approval.status) == (approval_pb2.RECORD_RESULT_CONFLICT, "approved")
    stored = await approvals.get_approval(world.db, approver.actor, UUID(first.approval_id))
    assert (stored.approval.status, stored.approval.resolved_via) == (ApprovalStatus.APPROVED, "api")

    run = await client.call(client.governance.Check, once)
    assert (run.verdict, run.next, json.loads(run.args)) == (governance_pb2.VERDICT_ALLOW, "run", json.loads(ARGS))
    report = governance_pb2.ReportOutcomeRequest(
        call_id=run.call_id, status="completed", result=b'{"refund": 7}', attempt=run.attempt
    )
    assert (await client.call(client.governance.ReportOutcome, report)).status == "completed"
    call = await calls.get_call(world.db, world.admin.actor, UUID(run.call_id))
    assert (call.status, call.result) == (CallStatus.COMPLETED, {"refund": 7})
    done = await client.call(client.governance.Check, once)
    assert (done.verdict, done.next, json.loads(done.result)) == (governance_pb2.VERDICT_DENY, "use", {"refund": 7})


@pytest.mark.proves("S4.208")
async def test_who_acts_comes_from_the_key_and_from_nothing_else(world: World, other: World, client: Client) -> None:
    approver = await world.person(Role.APPROVER, name="Val", clearance=3)
    decider = Client(client.channel, approver)
    session = await opened(world)
    approval = (await asked(client, session)).approval_id
    stranger = str(other.org_id)
    decide: dict[str, Any] = {"approval_id": approval, "decision": approval_pb2.DECISION_APPROVED}
    before = await count(world.db, world.org_id, "external_call")
    for who, method, request in cast("list[tuple[Client, Any, Any]]", [
        (decider, decider.approvals.RecordDecision, approval_pb2.RecordDecisionRequest(**decide, org_id=stranger)),
        (decider, decider.approvals.RecordDecision, approval_pb2.RecordDecisionRequest(**decide, operator_id=str(new_id()))),
        (decider, decider.approvals.RecordDecision, approval_pb2.RecordDecisionRequest(**decide, channel=approval_pb2.CHANNEL_SLACK)),
        (decider, decider.approvals.Delegate, approval_pb2.DelegateRequest(
            approval_id=approval, from_member_id=str(world.admin.member_id), to_member_id=str(world.admin.member_id))),
        (decider, decider.approvals.GetApproval, approval_pb2.GetApprovalRequest(approval_id=approval, org_id="acme")),
        (decider, decider.approvals.ListApprovals, approval_pb2.ListApprovalsRequest(org_id=stranger)),
        (client, client.governance.Check, check(session, member_id=str(approver.member_id))),
        (client, client.governance.Check, check(session, clearance=1001)),
        (client, client.governance.Check, check(session, agent_id=str(new_id()))),
        (client, client.governance.Check, check(session, org_id=stranger)),
        (client, client.approvals.RequestApproval, approval_pb2.RequestApprovalRequest(
            session_id=session, tool_name="a", team_id=str(new_id()))),
        (client, client.lifecycle.PauseSession, lifecycle_pb2.PauseSessionRequest(session_id=session, tenant_id=stranger)),
        (client, client.lifecycle.PauseSession, lifecycle_pb2.PauseSessionRequest(
            session_id=session, pause_source=lifecycle_pb2.PAUSE_SOURCE_APPROVAL)),
        (client, client.lifecycle.ResumeSession, lifecycle_pb2.ResumeSessionRequest(session_id=session, tenant_id=stranger)),
    ]):  # fmt: skip
        answer = await refused(who.call(method, request))
        assert (answer.code, answer.reason) == ("PERMISSION_DENIED", "not_of_the_caller"), request
    details = await approvals.get_approval(world.db, world.admin.actor, UUID(approval))
    assert details.approval.status is ApprovalStatus.PENDING
    assert details.delegations == []
    assert (await session_verbs.get_session(world.db, world.admin.actor, UUID(session))).held_at is None
    assert await count(world.db, world.org_id, "external_call") == before
    # An org sees nothing of another one's.
    spy = Client(client.channel, other.admin)
    attempts: list[tuple[Any, Any]] = [
        (spy.approvals.GetApproval, approval_pb2.GetApprovalRequest(approval_id=approval)),
        (spy.governance.ResolveApproval, governance_pb2.ResolveApprovalRequest(approval_id=approval)),
        (spy.approvals.RecordDecision, approval_pb2.RecordDecisionRequest(**decide)),
        (spy.lifecycle.PauseSession, lifecycle_pb2.PauseSessionRequest(session_id=session)),
        (spy.governance.Check, check(session)),
    ]
    for method, request in attempts:
        assert (await refused(spy.call(method, request))).code == "NOT_FOUND", request
    assert not (await spy.call(spy.approvals.ListApprovals, approval_pb2.ListApprovalsRequest())).approvals


@pytest.mark.proves("S4.208")
async def test_terms_of_a_request_only_tighten(world: World, client: Client) -> None:
    session = await opened(world)
    request = approval_pb2.RequestApprovalRequest(
        session_id=session, tool_name="orders.ship", args=b"{}", required_clearance=2, clearance=0,
        template=Template.CRITICAL_PATH, metadata={"why": "It is large."}, idempotency_key="ship",
    )  # fmt: skip
    request.deadline.GetCurrentTime()
    request.deadline.seconds += 600
    await world.person(Role.APPROVER, name="Val", clearance=3)
    answer = await client.call(client.approvals.RequestApproval, request)
    assert not answer.was_deduplicated
    card = (await approvals.get_approval(world.db, world.admin.actor, UUID(answer.approval_id))).approval
    assert (card.required_clearance, card.template, card.agent_says) == (2, Template.CRITICAL_PATH, "why: It is large.")
    assert card.deadline is not None
    assert 590 <= (card.deadline - card.requested_at).total_seconds() <= 600
    for fields, code, reason in (
        ({"tool_name": "orders.list"}, "FAILED_PRECONDITION", "approval_not_needed"),
        ({"tool_name": "mail.send", "required_clearance": 1}, "PERMISSION_DENIED", "call_denied"),
    ):
        refusal = await refused(
            client.call(
                client.approvals.RequestApproval, approval_pb2.RequestApprovalRequest(session_id=session, **fields)
            )
        )
        assert (refusal.code, refusal.reason) == (code, reason)
    far = approval_pb2.RequestApprovalRequest(session_id=session, tool_name="refunds.create", args=ARGS)
    far.deadline.FromSeconds(4_000_000_000)
    assert (await refused(client.call(client.approvals.RequestApproval, far))).fields == ["deadline"]


STRICT = """
policies:
  - name: wires
    target: "wires.*"
    effect: requires_approval
    template: full_pipeline
    approvers: {roles: [approver, admin]}
    clearance: 2
    timeout: 30m
    channels: [email]
"""


LOOSER_AND_STRICTER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"required_clearance": 1}, {}),
    ({"required_clearance": 3}, {"required_clearance": 3}),
    ({"template": Template.DEV_ONLY}, {}),
    ({"template": Template.CRITICAL_PATH}, {"template": "critical_path"}),
    ({"channels": ["email", "slack", "webhook"]}, {}),
    ({"channels": ["slack"]}, {"channels": []}),
    ({"deadline": 7200}, {}),
    ({"deadline": 600}, {"seconds": 600}),
]
"""Fields of a request, and what they change of the terms that the policy says."""


@pytest.mark.proves("D.1043")
async def test_a_field_of_a_request_never_loosens_what_the_policy_says(world: World, client: Client) -> None:
    """Each alone: the looser one changes nothing, in whatever it would loosen besides."""
    await world.person(Role.APPROVER, name="Val", clearance=3)
    await apply_policies(world.db, world.admin.actor, STRICT)
    session, ids, terms = await opened(world), [], []
    for number, (fields, _) in enumerate(LOOSER_AND_STRICTER):
        fields = dict(fields)
        seconds = fields.pop("deadline", 0)
        request = approval_pb2.RequestApprovalRequest(
            session_id=session, tool_name="wires.send", args=b'{"n": %d}' % number, **fields
        )
        if seconds:
            request.deadline.GetCurrentTime()
            request.deadline.seconds += seconds
        ids.append(UUID((await client.call(client.approvals.RequestApproval, request)).approval_id))
    async with world.db.transaction(world.org_id) as tx:
        rows = await tx.rows(
            "select required_clearance, template, channels, self_approval, approvers, standing, escalations,"
            " extract(epoch from deadline - requested_at)::float8 as seconds from approval_request where id = any ($1)"
            " order by id", ids,
        )  # fmt: skip
    terms = [dict(row) for row in rows]
    strict = {**terms[0], "required_clearance": 2, "template": "full_pipeline", "channels": ["email"], "seconds": 1800}
    for (fields, changes), row in zip(LOOSER_AND_STRICTER, terms, strict=True):
        expected = strict | changes
        expected["seconds"] = pytest.approx(expected["seconds"], abs=2)
        assert row == expected, fields


@pytest.mark.proves("S4.40")
async def test_a_key_is_one_call_that_joins_the_approval_of_the_same_call(world: World, client: Client) -> None:
    await world.person(Role.APPROVER, name="Val", clearance=3)
    session = await opened(world)

    async def request(
        key: str, args: bytes = ARGS, tool: str = "refunds.create"
    ) -> approval_pb2.RequestApprovalResponse:
        message = approval_pb2.RequestApprovalRequest(
            session_id=session, tool_name=tool, args=args, idempotency_key=key
        )
        answer: approval_pb2.RequestApprovalResponse = await client.call(client.approvals.RequestApproval, message)
        return answer

    first = await request("k1")
    assert await request("k1") == first
    joined = await request("k2")
    assert (joined.approval_id, joined.was_deduplicated, first.was_deduplicated) == (first.approval_id, True, False)
    assert joined.call_id not in ("", first.call_id)
    assert (await refused(request("k1", b"{}"))).reason == "call_key_reused"
    before = await count(world.db, world.org_id, "external_call")
    assert (await refused(request("k3", tool="orders.list"))).reason == "approval_not_needed"
    assert await count(world.db, world.org_id, "external_call") == before
    decision = approval_pb2.RecordDecisionRequest(
        approval_id=first.approval_id, decision=approval_pb2.DECISION_APPROVED, version=2
    )
    await client.call(client.approvals.RecordDecision, decision)
    for answer, key in ((first, "k1"), (joined, "k2")):
        run = await client.call(client.governance.Check, check(session, idempotency_key=key))
        assert (run.verdict, run.call_id) == (governance_pb2.VERDICT_ALLOW, answer.call_id)


@pytest.mark.proves("S4.40")
async def test_a_vote_sent_again_is_answered_although_the_approval_changed_since(world: World, client: Client) -> None:
    first, second = [await world.person(Role.APPROVER, name=name) for name in ("Val", "Vol")]
    policies = POLICIES.replace("requires_approval,", "requires_approval, quorum: 2,")
    await apply_policies(world.db, world.admin.actor, policies)
    session = await opened(world)
    approval = (await asked(client, session, idempotency_key="a")).approval_id
    vote = approval_pb2.RecordDecisionRequest(
        approval_id=approval, decision=approval_pb2.DECISION_APPROVED, idempotency_key="v"
    )
    record = client.approvals.RecordDecision
    assert (await Client(client.channel, first).call(record, vote)).result == approval_pb2.RECORD_RESULT_OK
    await asked(client, session, idempotency_key="b")
    again = await Client(client.channel, first).call(record, vote)
    assert (again.result, again.approval.version) == (approval_pb2.RECORD_RESULT_DUPLICATE, 2)
    assert (await refused(Client(client.channel, second).call(record, vote))).reason == "approval_changed"


async def test_an_approval_is_requested_once_a_gate_is_answered(
    world: World, http: httpx.AsyncClient, channel: aio.Channel
) -> None:
    await external_gates.governed(world)
    await apply_policies(world.db, world.admin.actor, POLICIES.replace("refunds.*", "ticket.*"))
    client = Client(channel, world.service)
    session = await external_gates.opened(http, world.service, agrees=True)
    for key in ("", "k"):
        request = approval_pb2.RequestApprovalRequest(
            session_id=session, tool_name="ticket.delete", args=b'{"ticket_id": "T-1"}', idempotency_key=key
        )
        assert (await refused(client.call(client.approvals.RequestApproval, request))).reason == "gate_closed"
    await external_gates.sent(http, world.service, f"/sessions/{session}/answers", **external_gates.SURE)
    answer = await client.call(client.approvals.RequestApproval, request)
    assert (answer.approval_id != "", answer.call_id != "") == (True, True)


@pytest.mark.proves("S4.209")
async def test_bad_input_is_refused_in_the_form_of_grpc_and_nothing_runs(world: World, client: Client) -> None:
    session, nobody = await opened(world), str(new_id())
    before = await count(world.db, world.org_id, "external_call")
    decision = approval_pb2.RecordDecisionRequest(approval_id=nobody, decision=approval_pb2.DECISION_APPROVED)
    for method, request, code, reason, fields in (
        (client.governance.Check, check(nobody), "NOT_FOUND", "session_not_found", []),
        (client.governance.Check, check("x"), "INVALID_ARGUMENT", "invalid_request", ["session_id"]),
        (client.governance.Check, check(session, "Not a tool"), "INVALID_ARGUMENT", "invalid_request", ["tool_name"]),
        (client.governance.Check, check(session, args=b"{"), "INVALID_ARGUMENT", "invalid_json", ["args"]),
        *(
            (client.governance.Check, check(session, args=content), "INVALID_ARGUMENT", "invalid_request", ["args"])
            for content in (b"[1]", b"null", b'""', b"0", b"false", b"[]")
        ),
        (client.governance.Check, check(session, args=b'{"a": 1e999}'), "INVALID_ARGUMENT", "invalid_request", ["args"]),
        (client.governance.Check, check(session, args_sha256="ab"), "INVALID_ARGUMENT", "invalid_request", ["args_sha256"]),
        (client.governance.Check, check(session, target="other"), "INVALID_ARGUMENT", "invalid_request", ["target"]),
        (client.governance.Check, check(session, parameters=b'{"type": "nothing"}'), "INVALID_ARGUMENT", "invalid_request", ["parameters"]),
        (client.governance.Check, check(session, risk="none"), "INVALID_ARGUMENT", "invalid_request", ["risk"]),
        (client.governance.Check, check(session, idempotency_key="a b"), "INVALID_ARGUMENT", "invalid_request", ["idempotency_key"]),
        (client.approvals.RecordDecision, decision, "NOT_FOUND", "approval_not_found", []),
        (client.approvals.RecordDecision, approval_pb2.RecordDecisionRequest(approval_id=nobody), "INVALID_ARGUMENT", "invalid_request", ["decision"]),
        (client.approvals.ListApprovals, approval_pb2.ListApprovalsRequest(page_token="x"), "INVALID_ARGUMENT", "invalid_cursor", []),
        (client.lifecycle.ResumeSession, lifecycle_pb2.ResumeSessionRequest(session_id=session), "FAILED_PRECONDITION", "failed_precondition", []),
    ):  # fmt: skip
        answer = await refused(client.call(method, request))
        assert (answer.code, answer.reason, answer.fields) == (code, reason, fields), request
    assert answer.hint, "it says what to do next"
    too_large: list[tuple[Any, Any, str]] = [
        (client.governance.Check, check(session, args=b" " * 262_145), "args"),
        (client.governance.ReportOutcome, governance_pb2.ReportOutcomeRequest(
            call_id=nobody, status="completed", result=b" " * 262_145), "result"),
        (client.lifecycle.ResumeSession, lifecycle_pb2.ResumeSessionRequest(
            session_id=session, operator_input=b" " * 32_769), "operator_input"),
    ]  # fmt: skip
    for method, request, field in too_large:
        refusal = await refused(client.call(method, request))
        assert (refusal.reason, refusal.fields, "may have" in refusal.message) == ("invalid_request", [field], True)
    large = await refused(
        client.call(client.governance.Check, check(session, args=b'{"a": "' + b"x" * 2_000_000 + b'"}'))
    )
    assert large.code == "RESOURCE_EXHAUSTED"
    unknown = client.channel.unary_unary("/upsquad.governance.v1.GovernanceService/Nothing", bytes, bytes)
    assert (await refused(unknown(b"", metadata=client.key))).code == "UNIMPLEMENTED"
    for metadata, reason in (((), "key_missing"), ((("authorization", "Bearer cortex_key_no"),), "key_unknown")):
        answer = await refused(client.governance.Check(check(session), metadata=metadata))
        assert (answer.code, answer.reason) == ("UNAUTHENTICATED", reason)
    denied = await client.call(client.governance.Check, check(session, "mail.send", look_only=True))
    assert (denied.verdict, denied.call_id) == (governance_pb2.VERDICT_DENY, "")
    assert "No mails today" in denied.reason
    allowed = await client.call(client.governance.Check, check(session, "orders.list", look_only=True))
    assert allowed.verdict == governance_pb2.VERDICT_ALLOW
    assert await count(world.db, world.org_id, "external_call") == before, "looking records nothing"


@pytest.mark.proves("S4.210")
async def test_a_session_is_followed_through_a_pause_and_from_a_cursor(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "HEARTBEAT_SECONDS", 0.05)
    session = await opened(world)
    stream = client.lifecycle.WatchSession(lifecycle_pb2.WatchSessionRequest(session_id=session), metadata=client.key)
    pause = lifecycle_pb2.PauseSessionRequest(
        session_id=session,
        reason="A closer look.",
        correlation_id="INC-1",
        pause_source=lifecycle_pb2.PAUSE_SOURCE_OPERATOR,
    )
    answer = await client.call(client.lifecycle.PauseSession, pause)
    assert (answer.status, answer.was_already_suspended, answer.pending) == (
        lifecycle_pb2.AGENT_STATUS_SUSPENDED,
        False,
        False,
    )
    assert answer.HasField("paused_at")
    assert (await client.call(client.lifecycle.PauseSession, pause)).was_already_suspended
    seen: list[lifecycle_pb2.WatchSessionResponse] = []
    beats = 0
    async for message in stream:
        if message.WhichOneof("message") == "event":
            seen.append(message)
        else:
            beats += bool(seen) and seen[-1].event.type == "session_paused"
        if beats == 2:
            break
    paused = seen[-1].event.agent_event.session_paused
    assert (paused.reason, paused.correlation_id, paused.pause_source) == (
        "A closer look.", "INC-1", lifecycle_pb2.PAUSE_SOURCE_OPERATOR
    )  # fmt: skip
    # It stayed open while nothing ran, and goes on.
    held = await refused(client.call(client.governance.Check, check(session, "orders.list")))
    assert held.code == "FAILED_PRECONDITION"
    resume = lifecycle_pb2.ResumeSessionRequest(session_id=session, resume_reason="Looked.")
    assert (await client.call(client.lifecycle.ResumeSession, resume)).status == lifecycle_pb2.AGENT_STATUS_ACTIVE
    async for message in stream:
        if message.WhichOneof("message") == "event":
            seen.append(message)
            if message.event.type == "session_resumed":
                break
    stream.cancel()
    cursors = [message.cursor for message in seen]
    assert cursors == sorted(set(cursors))
    # From any cursor: exactly what came after it.
    for number in (0, len(seen) // 2):
        after = cursors[number]
        again = client.lifecycle.WatchSession(
            lifecycle_pb2.WatchSessionRequest(session_id=session, after=after), metadata=client.key
        )
        rest: list[Any] = [await again.read() for _ in seen[number + 1 :]]
        assert [message.cursor for message in rest] == cursors[number + 1 :]
        again.cancel()


async def drained(stream: Any) -> None:
    async with asyncio.timeout(15):
        while await stream.read() is not aio.EOF:
            pass


async def changes(stream: Any, count: int) -> list[approval_pb2.WatchApprovalsResponse]:
    found: list[approval_pb2.WatchApprovalsResponse] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            message = await stream.read()
            assert message is not aio.EOF
            if message.WhichOneof("message") == "event":
                found.append(message)
    return found


@pytest.mark.proves("S4.211")
async def test_changes_of_approvals_are_followed_exactly_once_whatever_commits_first(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_door, "POLL_SECONDS", 0.05)  # no event of a session tells of what is appended here
    session = await opened(world)

    def watch(after: str) -> Any:
        return client.approvals.WatchApprovals(approval_pb2.WatchApprovalsRequest(after=after), metadata=client.key)

    stream = watch("")
    start = (await stream.read()).cursor
    first = UUID((await asked(client, session)).approval_id)
    (requested,) = await changes(stream, 1)
    assert (requested.event.type, requested.event.approval.approval_id) == ("requested", str(first))
    # Two transactions: the first to begin is the last to commit.
    apart = await opened(world)
    second = UUID((await asked(client, apart)).approval_id)
    (also,) = await changes(stream, 1)

    async def remind(tx: Any, id: UUID, session: str) -> None:
        fact = Fact.of(world.admin.actor, "approval_reminded", approval=str(id))
        await proof_store.append_to_session(tx, UUID(session), [fact])

    async with world.db.transaction(world.org_id) as slow:
        await remind(slow, first, session)
        async with world.db.transaction(world.org_id) as fast:
            await remind(fast, second, apart)
        (earlier,) = await changes(stream, 1)
    (later,) = await changes(stream, 1)
    assert [message.event.approval.approval_id for message in (earlier, later)] == [str(second), str(first)]
    decision = approval_pb2.RecordDecisionRequest(approval_id=str(first), decision=approval_pb2.DECISION_DENIED)
    await client.call(client.approvals.RecordDecision, decision)
    (decided,) = await changes(stream, 1)
    assert (decided.event.type, decided.event.approval.status) == ("decision", "denied")
    stream.cancel()

    def kinds(messages: list[approval_pb2.WatchApprovalsResponse]) -> list[tuple[str, str]]:
        return [(message.event.type, message.event.approval.approval_id) for message in messages]

    everything = kinds([requested, also, earlier, later, decided])
    for cursor, left in ((start, 5), (requested.cursor, 4), (earlier.cursor, 2), (decided.cursor, 0)):
        again = watch(cursor)
        # Whoever resumes from the first message of a resumed stream misses nothing.
        begun = await again.read()
        again.cancel()
        assert begun.WhichOneof("message") == "keepalive"
        again = watch(begun.cursor)
        rest = await changes(again, left)
        assert sorted(kinds(rest)) == sorted(everything[5 - left :])
        # And from the middle of what came together.
        if left == 5:
            inner = watch(rest[1].cursor)
            assert kinds(await changes(inner, 3)) == kinds(rest[2:])
            inner.cancel()
        again.cancel()
    # Whoever is not staff hears of their own only.
    member = Client(client.channel, await world.person(Role.MEMBER, name="Mo"))
    mine = member.approvals.WatchApprovals(approval_pb2.WatchApprovalsRequest(after=start), metadata=member.key)
    own = await opened(world, member.person)
    id = (await asked(member, own)).approval_id
    assert kinds(await changes(mine, 1)) == [("requested", id)]
    mine.cancel()
    for cursor in ("x", "WyIxOjI6NSJd", "eyJhIjoxfQ"):
        assert (await refused(drained(watch(cursor)))).reason == "invalid_cursor"


async def test_a_page_of_large_approvals_ends_before_a_message_is_too_large(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_door, "PAGE_BYTES", 30_000)
    await world.person(Role.APPROVER, name="Val")
    session, token = await opened(world), ""
    ids: list[str] = []
    sizes: list[int] = []
    for size in (1_000, 12_000, 12_000, 12_000, 40_000):
        args = json.dumps({"n": len(ids), "text": "x" * size}).encode()
        ids.append((await asked(client, session, args=args)).approval_id)
    listed: list[str] = []
    while token or not sizes:
        page = await client.call(client.approvals.ListApprovals, approval_pb2.ListApprovalsRequest(page_token=token))
        listed += [approval.approval_id for approval in page.approvals]
        token, sizes = page.next_page_token, [*sizes, len(page.approvals)]
    assert (listed, sizes) == (ids[::-1], [1, 2, 2])


async def test_whoever_waits_for_a_decision_gets_it_at_once(world: World, client: Client) -> None:
    await world.person(Role.APPROVER, name="Val")
    approval = (await asked(client, await opened(world))).approval_id
    request = governance_pb2.ResolveApprovalRequest(approval_id=approval)
    assert not (await client.call(client.governance.ResolveApproval, request)).resolved
    request.wait.CopyFrom(Duration(seconds=20))
    waiting = asyncio.ensure_future(client.call(client.governance.ResolveApproval, request))
    listed = await client.call(client.approvals.ListApprovals, approval_pb2.ListApprovalsRequest(status="pending"))
    assert [item.approval_id for item in listed.approvals] == [approval]
    assert listed.next_page_token == ""
    decision = approval_pb2.RecordDecisionRequest(approval_id=approval, decision=approval_pb2.DECISION_APPROVED)
    assert (await client.call(client.approvals.RecordDecision, decision)).result == approval_pb2.RECORD_RESULT_OK
    answer = await waiting
    assert (answer.resolved, answer.approval.status) == (True, "approved")
    request.wait.CopyFrom(Duration(seconds=61))
    assert (await refused(client.call(client.governance.ResolveApproval, request))).fields == ["wait"]


@pytest.mark.proves("S4.209")
async def test_a_deadline_ends_the_call_and_leaves_nothing_half_done(world: World, client: Client, door: Door) -> None:
    session = await opened(world)
    approval = await asked(client, session)
    decision = approval_pb2.RecordDecisionRequest(
        approval_id=approval.approval_id, decision=approval_pb2.DECISION_DENIED, idempotency_key="no"
    )
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows("select from approval_request where id = $1 for update", UUID(approval.approval_id))
        late = await refused(client.call(client.approvals.RecordDecision, decision, timeout=0.3))
        assert late.code == "DEADLINE_EXCEEDED"
    stored = await approvals.get_approval(world.db, world.admin.actor, UUID(approval.approval_id))
    assert stored.approval.status is ApprovalStatus.PENDING
    assert (await client.call(client.approvals.RecordDecision, decision)).result == approval_pb2.RECORD_RESULT_OK
    assert door.app.state.in_flight.held_by(world.org_id.int) == 0


@pytest.mark.proves("S4.212")
async def test_keys_rates_and_the_end_of_the_process_hold_for_streams_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "HEARTBEAT_SECONDS", 0.05)
    session = await opened(world)
    request = lifecycle_pb2.WatchSessionRequest(session_id=session)
    guest = await world.service_with(Role.OPERATOR)
    async with open_door(world.db) as door, door.channel() as channel:
        visitor, client = Client(channel, guest), Client(channel, world.admin)
        lost = visitor.lifecycle.WatchSession(request, metadata=visitor.key)
        stays = client.lifecycle.WatchSession(request, metadata=client.key)
        for stream in (lost, stays):
            await stream.read()
        await keys.revoke_key(world.db, world.admin.actor, guest.actor.key_id)
        assert (await refused(drained(lost))).code == "UNAUTHENTICATED"
        end = asyncio.get_running_loop().time()
        door.app.state.feed.close()
        dropped = await refused(drained(stays))
        assert (dropped.code, dropped.reason) == ("UNAVAILABLE", "stream_dropped")
        assert asyncio.get_running_loop().time() - end < 2
    assert door.app.state.streams.of.total() == 0
    async with open_door(world.db, RequestRates(0.1)) as door, door.channel() as channel:
        client = Client(channel, world.admin)
        listing = approval_pb2.ListApprovalsRequest()
        await client.call(client.approvals.ListApprovals, listing)
        answer = await refused(client.call(client.approvals.ListApprovals, listing))
        assert (answer.code, answer.reason) == ("RESOURCE_EXHAUSTED", "rate_limited")
        assert answer.retry_seconds is not None
        assert answer.retry_seconds >= 1


@pytest.mark.proves("S4.212")
async def test_nobody_without_a_key_closes_the_port_and_a_reader_who_stalls_keeps_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_CALLS", 8)
    monkeypatch.setattr(grpc_calls, "PUBLIC_CALLS", 2)
    monkeypatch.setattr(grpc_calls, "RECEIVE_SECONDS", 0.2)
    monkeypatch.setattr(grpc_calls, "STALL_SECONDS", 0.2)
    async with open_door(world.db) as door, door.channel() as channel:
        client, streams = Client(channel, world.admin), door.app.state.streams
        listing = approval_pb2.ListApprovalsRequest()
        # Headers without a message, from nobody and from somebody.
        bare: Any = channel.stream_unary("/upsquad.governance.v1.GovernanceService/Check")
        for _ in range(10):
            open_call = bare()
            await open_call.wait_for_connection()
            assert (await refused(open_call)).code == "UNAUTHENTICATED"
        assert (await refused(bare(metadata=client.key))).reason == "message_late"
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        first = await asyncio.gather(*(watch(b"").read() for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(answer, bytes) for answer in first) == 2
        await client.call(client.approvals.ListApprovals, listing)

        # An answer larger than the window, which nobody takes: the call is given up, and counts until the connection ends.
        await apply_policies(world.db, world.admin.actor, POLICIES)
        await world.person(Role.APPROVER, name="Val")
        session = await opened(world)
        large = (await asked(client, session, args=b'{"text": "' + b"x" * 200_000 + b'"}')).approval_id
        get = approval_pb2.GetApprovalRequest(approval_id=large).SerializeToString()
        monkeypatch.setattr(frame, "MOST_OF_ONE", 3)
        small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1000)]
        async with aio.insecure_channel(door.address, options=small_window) as lazy:
            read: Any = lazy.unary_stream("/upsquad.governance.v1.ApprovalService/GetApproval")
            stalled = [read(get, metadata=client.key) for _ in range(3)]
            await until(lambda: streams.of.total() == 3 and not door.app.state.in_flight.held_by(world.org_id.int))
            answer = await refused(client.call(client.approvals.ListApprovals, listing))
            assert (answer.reason, streams.of.total()) == ("too_many_streams", 3)
            for call in stalled:
                call.cancel()
    assert streams.of.total() == 0
