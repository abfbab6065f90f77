"""Calls elsewhere against whoever means ill: schemas that reach out, keys and outcomes of others, approvals of one's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pydantic import ValidationError

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDecision,
    ApprovalStatus,
    Channel,
    Choice,
    EffectAnswer,
)
from cortex_plane.approvals.verbs import approval_requests, approvals, decisions, edits, settlements
from cortex_plane.calls.model import CallDraft, Ending, ExternalCall, IntentDraft, Next, OutcomeDraft, OutcomeStatus
from cortex_plane.calls.verbs import calls, external, outcomes
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import CallStatus, Verdict
from cortex_plane.jobs.model.jobs import Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind, Termination
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies

TWO_PEOPLE = (
    'policies: [{name: two-people, target: "*", effect: requires_approval, self_approval: false,'
    " approvers: {roles: [approver]}}]"
)
ASK = 'policies: [{name: ask, target: "*", effect: requires_approval}]'


async def opened(world: World, actor: Actor) -> UUID:
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    return (await session_lifecycle.create(world.db, actor, draft)).id


async def asked(world: World, actor: Actor, session: UUID | None = None, **more: Any) -> ExternalCall:
    where = session or await opened(world, actor)
    draft = CallDraft(tool="pay.out", arguments={"cents": 1}, **more)
    return await calls.authorize_call(world.db, actor, where, draft)


async def cards(world: World) -> list[Approval]:
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING)
    return page.items


async def decided(world: World, actor: Actor, **more: Any) -> None:
    (card,) = await cards(world)
    decision = ApprovalDecision(
        decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash, **more
    )  # fmt: skip
    await decisions.decide(world.db, actor, card.id, decision, Channel.API)


# Schemas ----------------------------------------------------------------------------------------------------------


@contextmanager
def outside() -> Iterator[tuple[str, list[str]]]:
    """Somebody who would notice being asked."""
    hits: list[str] = []

    class Noticed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"const": "SECRET"}')

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Noticed)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/latest", hits
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def doubling(levels: int) -> dict[str, Any]:
    both = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**both, f"a{levels}": {}}}


def chained(length: int) -> dict[str, Any]:
    one = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**one, f"a{length}": {}}}


UNUSABLE: list[dict[str, Any]] = [
    {"$ref": "http://127.0.0.1:9/x"},
    {"$ref": "file:///etc/hosts"},
    {"properties": {"a": {"$dynamicRef": "http://127.0.0.1:9/x"}}},
    {"$id": "http://127.0.0.1:9/x", "properties": {}},
    {"$schema": "http://127.0.0.1:9/x"},
    {"type": "nonsense"},
    {"$ref": "#/$defs/missing"},
    {"$ref": "#there"},
    {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]},
    {"properties": {"a": {"enum": ["x" * 70_000]}}},
    doubling(40),
    chained(1_000),
]


@pytest.mark.proves("D.284")
@pytest.mark.parametrize("parameters", UNUSABLE, ids=lambda each: str(each)[:40])
def test_a_schema_that_reaches_out_or_never_ends_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="cannot be used"):
        CallDraft(tool="pay.out", parameters=parameters)


@pytest.mark.proves("D.284")
def test_a_schema_that_refers_to_its_own_parts_is_taken() -> None:
    inner = {"type": "object", "properties": {"$ref": {"type": "string"}, "cents": {"type": "integer"}}}
    schema = {"properties": {n: {"$ref": "#/$defs/Inner"} for n in "ab"}, "$defs": {"Inner": inner}}
    assert CallDraft(tool="pay.out", parameters=schema).parameters == schema
    assert CallDraft(tool="pay.out", parameters=chained(50)).parameters is not None


async def smuggled(world: World, admin: asyncpg.Connection, call: ExternalCall, schema: dict[str, Any]) -> None:
    """A schema that is there in spite of it all."""
    await admin.execute(
        "insert into external_tool (org_id, name, digest, parameters) values ($1, $2, $3, $4::text::jsonb)",
        world.org_id, call.tool, call.tool_digest, canonical(schema).decode(),
    )  # fmt: skip


@pytest.mark.proves("D.284")
async def test_nothing_is_fetched_for_an_edit(strict: World, admin: asyncpg.Connection, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"const": "SECRET"}')
    pattern = {"properties": {"cents": {"pattern": "^(a|a?)+$(?=x)"}}}
    with outside() as (url, hits):
        schemas: list[dict[str, Any]] = [
            {"$ref": url}, {"$ref": f"file://{tmp_path}/secret.json"}, {"type": "nonsense"}, pattern,
        ]  # fmt: skip
        for number, schema in enumerate(schemas):
            call = await asked(strict, strict.admin.actor, key=str(number), timeout_seconds=number + 1)
            await smuggled(strict, admin, call, schema)
            (card,) = [each for each in await cards(strict) if each.session_id == call.session_id]
            decision = ApprovalDecision(
                decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash,
                arguments={"cents": "a" * 60 + "!"},
            )  # fmt: skip
            with pytest.raises(InvalidInput) as refused:
                await decisions.decide(strict.db, strict.admin.actor, card.id, decision, Channel.API)
            assert refused.value.code == "edit_invalid"
            assert "SECRET" not in str(refused.value)
        assert hits == []


@pytest.mark.proves("D.284")
async def test_nothing_is_checked_for_whoever_may_not_approve(strict: World) -> None:
    await strict.person(Role.APPROVER, name="Eve")
    await apply_policies(strict.db, strict.admin.actor, TWO_PEOPLE)
    mallory = await strict.person(Role.MEMBER, name="Mallory")
    await asked(strict, mallory.actor, parameters={"properties": {"cents": {"const": 1}}})
    (card,) = await cards(strict)
    decision = ApprovalDecision(
        decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash, arguments={"cents": 2}
    )
    edit = await edits.prepare_edit(strict.db, mallory.actor, card.id, decision)
    assert edit is not None
    assert isinstance(edit.error, Forbidden)
    with pytest.raises(Forbidden):
        await decisions.decide(strict.db, mallory.actor, card.id, decision, Channel.API)


# Approvals of one's own -------------------------------------------------------------------------------------------


@pytest.mark.proves("D.284")
async def test_whoever_asks_in_the_session_of_another_does_not_approve_it(strict: World) -> None:
    alice = await strict.person(Role.MEMBER, name="Alice")
    bob = await strict.person(Role.OPERATOR, Role.APPROVER, name="Bob")
    await apply_policies(strict.db, strict.admin.actor, TWO_PEOPLE)
    session = await opened(strict, alice.actor)
    # Nobody but Bob could decide: said at once.
    alone = await asked(strict, bob.actor, session, key="alone")
    assert (alone.status, alone.next) == (CallStatus.REJECTED, Next.STOP)
    eve = await strict.person(Role.APPROVER, name="Eve")
    call = await asked(strict, bob.actor, session)
    assert call.next is Next.WAIT
    with pytest.raises(Forbidden):
        await decided(strict, bob.actor)
    await decided(strict, eve.actor)
    assert (await calls.get_call(strict.db, bob.actor, call.id)).next is Next.BEGIN


@pytest.mark.proves("D.284")
async def test_who_asked_before_does_not_approve_what_another_begins(world: World) -> None:
    bob = await world.person(Role.OPERATOR, Role.APPROVER, name="Bob")
    await world.person(Role.APPROVER, name="Eve")
    session = await opened(world, world.service.actor)
    call = await asked(world, bob.actor, session)
    assert call.next is Next.BEGIN
    await apply_policies(world.db, world.admin.actor, TWO_PEOPLE)
    intent = IntentDraft(input_hash=call.input_hash)
    assert (await calls.begin_call(world.db, world.service.actor, call.id, intent)).next is Next.WAIT
    with pytest.raises(Forbidden):
        await decided(world, bob.actor)


# Keys and outcomes of others --------------------------------------------------------------------------------------


@pytest.mark.proves("D.272")
async def test_two_sessions_that_ask_with_one_key_ask_once(strict: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [await opened(strict, strict.service.actor) for _ in range(2)]
    real, between = approval_requests.request, asyncio.Lock()
    overtook: list[ExternalCall] = []

    async def overtaken(*args: Any) -> Any:
        # The other one comes after the look at the key, and before the write.
        if not overtook and not between.locked():
            async with between:
                overtook.append(await asked(strict, strict.service.actor, second, key="k"))
        return await real(*args)

    monkeypatch.setattr(approval_requests, "request", overtaken)
    call = await asked(strict, strict.service.actor, first, key="k")
    assert [call.id] == [each.id for each in overtook]
    assert [card.session_id for card in await cards(strict)] == [second]
    await decided(strict, strict.admin.actor)
    assert (await calls.get_call(strict.db, strict.service.actor, call.id)).next is Next.BEGIN


@pytest.mark.proves("D.272")
async def test_nobody_uses_up_or_forges_the_key_of_another(world: World) -> None:
    mallory = await world.person(Role.MEMBER, name="Mallory")
    forged = await asked(world, mallory.actor, key="order-1", dispatch=True, sender="m")
    done = OutcomeDraft(status=OutcomeStatus.COMPLETED, result="paid, said Mallory")
    await outcomes.settle_call(world.db, mallory.actor, forged.id, done)
    for victim in (world.admin.actor, world.service.actor):
        call = await asked(world, victim, key="order-1", dispatch=True, sender="v")
        assert (call.next, call.result) == (Next.RUN, None)
        assert call.id != forged.id
    # Staff may ask in the session of another: what they made of a key there is not taken for the other's own.
    operator = await world.person(Role.OPERATOR, name="Olga")
    session = await opened(world, world.service.actor)
    made = await asked(world, operator.actor, session, key="order-2", dispatch=True, sender="o")
    await outcomes.settle_call(world.db, operator.actor, made.id, done)
    with pytest.raises(Conflict) as refused:
        await asked(world, world.service.actor, session, key="order-2", dispatch=True, sender="v")
    assert refused.value.code == "call_key_reused"


@pytest.mark.proves("D.284")
@pytest.mark.parametrize("status", [status for status in OutcomeStatus if status is not OutcomeStatus.WITHDRAWN])
async def test_only_its_agent_says_what_became_of_it(world: World, status: OutcomeStatus) -> None:
    alice = await world.person(Role.MEMBER, name="Alice")
    stewart = await world.person(Role.STEWARD, Role.OPERATOR, name="Stewart")
    call = await asked(world, alice.actor, dispatch=True, sender="a")
    draft = OutcomeDraft(status=status, attempt=1)
    with pytest.raises(Forbidden) as refused:
        await outcomes.settle_call(world.db, stewart.actor, call.id, draft)
    assert refused.value.code == "not_its_agent"
    assert (await calls.get_call(world.db, alice.actor, call.id)).status is CallStatus.INTENDED
    # Whoever began it in the session of another was there.
    begun = await asked(world, stewart.actor, call.session_id, dispatch=True, sender="s")
    await outcomes.settle_call(world.db, stewart.actor, begun.id, draft)
    await outcomes.settle_call(world.db, alice.actor, call.id, draft)


# Endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.273")
async def test_what_a_person_approved_is_not_thrown_away_with_its_session(strict: World) -> None:
    actor = strict.service.actor
    call = await asked(strict, actor, key="k", dispatch=True, sender="one")
    for decide in (False, True):
        if decide:
            await decided(strict, strict.admin.actor)
        with pytest.raises(Conflict) as refused:
            await external.complete(strict.db, actor, call.session_id, Ending())
        assert refused.value.code == "calls_open"
    later = await asked(strict, actor, key="k", dispatch=True, sender="two")
    assert (later.id, later.next) == (call.id, Next.RUN)


@pytest.mark.proves("D.273")
async def test_nobody_is_told_to_run_what_was_stopped_meanwhile(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    actor = world.service.actor
    session = await opened(world, actor)
    same: dict[str, Any] = {"key": "k", "dispatch": True, "sender": "one"}
    call = await asked(world, actor, session, **same)
    intent = IntentDraft(input_hash=call.input_hash, sender="one")
    await steering.pause(world.db, world.admin.actor, call.job_id, Pause())
    assert (await asked(world, actor, session, **same)).next is Next.WAIT
    assert (await calls.begin_call(world.db, actor, call.id, intent)).next is Next.WAIT
    await steering.resume(world.db, world.admin.actor, call.job_id, Resumption())
    assert (await asked(world, actor, session, **same)).next is Next.RUN
    with pytest.raises(Conflict) as other:
        await calls.begin_call(world.db, actor, call.id, IntentDraft(input_hash="0" * 64, sender="one"))
    assert other.value.code == "arguments_changed"
    await clock.advance(timedelta(seconds=31))
    late = await calls.begin_call(world.db, actor, call.id, intent)
    assert (late.next, late.attempt) == (Next.BEGIN, 1)
    renewal = IntentDraft(input_hash=call.input_hash, sender="one", renew=True)
    renewed = await calls.begin_call(world.db, actor, call.id, renewal)
    assert (renewed.next, renewed.attempt) == (Next.RUN, 2)
    await session_lifecycle.terminate(world.db, world.admin.actor, session, Termination())
    assert (await asked(world, actor, session, **same)).next is Next.STOP
    assert (await calls.begin_call(world.db, actor, call.id, intent)).next is Next.STOP


@pytest.mark.proves("D.276")
async def test_saying_renew_does_not_spare_others_the_question(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    actor = world.service.actor
    call = await asked(world, actor, dispatch=True, sender="1", on_uncertain=OnUncertain.RETRY_WITH_KEY)
    for sender in ("2", "3", "4"):
        await clock.advance(timedelta(hours=1))
        renewal = IntentDraft(input_hash=call.input_hash, sender=sender, renew=True)
        begun = await calls.begin_call(world.db, actor, call.id, renewal)
    assert (begun.attempt, begun.next, begun.status) == (3, Next.WAIT, CallStatus.UNCERTAIN)
    assert len(await cards(world)) == 1


@pytest.mark.proves("D.276")
async def test_a_late_outcome_does_not_settle_the_attempt_after_a_new_approval(world: World) -> None:
    actor = world.service.actor
    call = await asked(world, actor, dispatch=True, sender="a")
    await outcomes.settle_call(world.db, actor, call.id, OutcomeDraft(status=OutcomeStatus.UNKNOWN, attempt=1))
    (card,) = await cards(world)
    answer = EffectAnswer(verdict=Verdict.DID_NOT_HAPPEN)
    await settlements.answer(world.db, world.admin.actor, card.id, answer, Channel.API)
    await apply_policies(world.db, world.admin.actor, ASK)
    intent = IntentDraft(input_hash=call.input_hash, sender="b")
    assert (await calls.begin_call(world.db, actor, call.id, intent)).next is Next.WAIT
    late = OutcomeDraft(status=OutcomeStatus.FAILED, error="late", attempt=1)
    with pytest.raises(CortexError):
        await outcomes.settle_call(world.db, actor, call.id, late)
    await decided(world, world.admin.actor)
    again = await calls.begin_call(world.db, actor, call.id, intent)
    assert (again.next, again.attempt) == (Next.RUN, 2)
    with pytest.raises(Conflict) as refused:
        await outcomes.settle_call(world.db, actor, call.id, late)
    assert refused.value.code == "attempt_over"
