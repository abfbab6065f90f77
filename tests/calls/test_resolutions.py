"""Resolutions over HTTP: what an agent may do and must know, acting under the answer, and everything that is refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.rules.permissions import MAX_REASON
from cortex_plane.calls.verbs import resolutions
from cortex_plane.client import Client
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, GateClosed
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.atlases import publish
from tests.fixtures.clock import Clock
from tests.fixtures.external_gates import (
    AGREE,
    DELETE,
    DESK,
    ONBOARDING,
    ROUND,
    SURE,
    desk,
    gate,
    governed,
    opened,
    permissions,
    question,
    sent,
    told,
)
from tests.fixtures.gated import state_in
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.waits import lock_waiters

MANY = 25
GET = {"tool": "ticket.get", "arguments": {"ticket_id": "T-1"}}


async def resolved(
    http: httpx.AsyncClient, person: Person, session: str, status: int = 201, /, **request: Any
) -> dict[str, Any]:
    return await sent(http, person, f"/sessions/{session}/resolve", status, **request)


async def executed(
    http: httpx.AsyncClient, person: Person, resolution: dict[str, Any], status: int = 201, /, **call: Any
) -> dict[str, Any]:
    return await sent(http, person, f"/resolutions/{resolution['id']}/execute", status, **call)


def actions(answers: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {each["action"]: (each["verdict"], each["rule"]) for each in answers}


@pytest.mark.proves("D.388", "S5.26")
async def test_a_resolution_says_what_may_be_done_and_must_be_known_and_why(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    await governed(world)
    session = await opened(http, world.service)
    first = await resolved(http, world.service, session, goal="Look at tickets")
    assert first["decision"] == "deny", "who has not agreed may do nothing"
    assert [each["gate"] for each in first["questions"]] == ["onboarding"]
    await sent(http, world.service, f"/sessions/{session}/answers", **AGREE)
    found = await resolved(http, world.service, session, goal="Look at tickets", ttl_seconds=60)
    assert (found["decision"], found["questions"]) == ("partial", [])
    allowed, denied = actions(found["allowed_actions"]), actions(found["denied_actions"])
    assert allowed["ticket.get"] == ("allow", f"capability:{DESK}/basic")
    assert denied["ticket.delete"] == ("deny", f"gate:{DESK}/delete-confirm")
    assert denied["user.rename"] == ("deny", f"gate:{DESK}/admin")
    assert all(each["reason"] for each in found["denied_actions"])
    blocks = {each["id"]: each["content"] for each in found["contexts"]}
    assert blocks == {f"{DESK}/intro": "You work for Acme.", f"{DESK}/onboarding": "Be kind."}
    limits = {(each["kind"], each["name"]): each["detail"] for each in found["constraints"]}
    assert limits["rate_limit", f"{DESK}/lists"]["left"] == 2
    assert limits["scope", f"{DESK}/basic"]["actions"] == ["ticket.get", "ticket.list"]
    until = datetime.fromisoformat(limits["time_window", "resolution"]["until"])
    assert until == datetime.fromisoformat(found["expires_at"])
    kept = await http.get(f"/v1/resolutions/{found['id']}", headers=world.service.headers)
    assert kept.json() == found
    row = await admin.fetchval("select answer::text from resolution where id = $1", UUID(found["id"]))
    assert "You work for Acme." not in row, "what atlases say is kept once, with them"
    (_, fact) = (await told(world, session, "resolution_given"))[-1]
    assert (fact["resolution"], fact["trace_id"]) == (found["id"], found["trace_id"])
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.388")
async def test_one_call_is_resolved_with_its_arguments_and_its_questions_are_answered_ahead(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    about = {"action": "ticket.delete", "arguments": DELETE["arguments"]}
    asked = await resolved(http, world.service, session, **about)
    assert asked["decision"] == "deny"
    assert [each["gate"] for each in asked["questions"]] == ["delete-confirm"]
    triggered = [data for name, data in await told(world, session) if name == "checkpoint_triggered"]
    assert triggered[-1]["trace_id"] == asked["trace_id"]
    await sent(http, world.service, f"/sessions/{session}/answers", **SURE)
    found = await resolved(http, world.service, session, **about)
    assert found["decision"] == "allow"
    run = await executed(http, world.service, found, **DELETE)
    assert (run["status"], run["next"]) == ("intended", "run")
    wires = await resolved(http, world.service, session, action="wire.send")
    assert (wires["decision"], wires["denied_actions"]) == ("requires_approval", [])
    misfit = await resolved(http, world.service, session, action="ticket.get", arguments={})
    assert (misfit["decision"], misfit["denied_actions"][0]["rule"]) == ("deny", "action:ticket.get")


@pytest.mark.proves("D.388")
async def test_policies_have_their_word_in_it_also_where_no_atlas_governs(
    http: httpx.AsyncClient, world: World, strict: World
) -> None:
    await apply_policies(
        world.db,
        world.admin.actor,
        'policies: [{name: no, target: "ticket.get", effect: deny}, {name: yes, target: "*", effect: allow}]',
    )
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    found = await resolved(http, world.service, session)
    assert actions(found["denied_actions"])["ticket.get"][1].startswith("org:no")
    assert actions(found["allowed_actions"])["ticket.list"] == ("allow", f"capability:{DESK}/basic")
    # Without an atlas policies alone speak.
    free = await opened(http, strict.service)
    about = await resolved(http, strict.service, free, action="refunds.create")
    assert (about["decision"], about["contexts"], about["questions"]) == ("requires_approval", [], [])
    waiting = await executed(http, strict.service, about, tool="refunds.create")
    assert (waiting["status"], waiting["next"]) == ("awaiting", "wait")
    nothing = await resolved(http, strict.service, free, 422)
    assert "action" in nothing["errors"][0]["field"]


@pytest.mark.proves("D.389")
async def test_keywords_of_a_goal_ask_once_and_the_same_goal_goes_on_after_that(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    goal = {"goal": "Fix the PAYROLL run"}
    asked = await resolved(http, world.service, session, **goal)
    assert [each["gate"] for each in asked["questions"]] == ["payroll"]
    refused = await executed(http, world.service, asked, 409, **GET)
    assert refused["code"] == "action_not_resolved"
    # It stops everything, also what was not resolved first.
    closed = await sent(http, world.service, f"/sessions/{session}/calls", 409, **GET)
    assert [each["gate"] for each in closed["questions"]] == ["payroll"]
    why = {"gate": "payroll", "answers": {"why": "Its owner asked me to"}}
    assert (await sent(http, world.service, f"/sessions/{session}/answers", **why))["passed"]
    again = await resolved(http, world.service, session, **goal)
    assert (again["questions"], again["decision"]) == ([], "partial")
    other = await resolved(http, world.service, session, goal="The payroll again")
    assert [each["gate"] for each in other["questions"]] == ["payroll"], "another goal is heard anew"


@pytest.mark.proves("D.390")
async def test_executing_needs_a_resolution_that_holds_and_covers_the_call(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    found = await resolved(http, world.service, session, ttl_seconds=60)
    for call in ({"tool": "ticket.delete", "arguments": {"ticket_id": "T-1"}}, {"tool": "never.named"}):
        refused = await executed(http, world.service, found, 409, **call)
        assert refused["code"] == "action_not_resolved"
    facts = [data for _, data in await told(world, session, "resolution_refused")]
    assert [each["tool"] for each in facts] == ["ticket.delete", "never.named"]
    one = await resolved(http, world.service, session, action="ticket.get", arguments=GET["arguments"])
    other = await executed(http, world.service, one, 409, tool="ticket.get", arguments={"ticket_id": "T-2"})
    assert "other arguments" in other["detail"]
    run = await executed(http, world.service, found, **GET, key="k", sender="s")
    assert run["next"] == "run"
    await clock.advance(timedelta(seconds=61))
    expired = await executed(http, world.service, found, 409, **GET)
    assert expired["code"] == "resolution_expired"
    # What was executed in time is found by its key, and reported, also after that.
    same = await executed(http, world.service, found, **GET, key="k", sender="t")
    assert same["id"] == run["id"]
    foreign = await executed(http, world.service, one, 409, **GET, key="k")
    assert foreign["code"] == "call_key_reused"
    report = {"call": run["id"], "outcome": {"status": "completed", "result": {"title": "x"}}}
    for _ in range(2):
        done = await sent(http, world.service, f"/resolutions/{found['id']}/report", **report)
        assert done["status"] == "completed"


@pytest.mark.proves("D.390")
async def test_a_call_is_written_under_a_resolution_that_still_holds_when_it_is_written(
    db: Database, http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """Whoever looked in time and writes too late writes nothing."""
    clock = await Clock.install(admin, datetime.now(UTC))
    session = await opened(http, world.service)
    found = await resolved(http, world.service, session, action="ticket.get", ttl_seconds=1)
    # The function is the last look, whatever was seen before.
    await clock.advance(timedelta(seconds=2))
    with pytest.raises(Conflict) as late:
        async with db.transaction(world.org_id) as tx:
            await tx.rows(
                "select execute_resolution($1, $2, $3, plane_now())", world.org_id, UUID(found["id"]), uuid4()
            )
    assert late.value.code == "resolution_expired"


@pytest.mark.proves("D.391")
async def test_a_resolution_is_for_whoever_asked_and_its_report_for_its_own_calls(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    found = await resolved(http, world.service, session)
    stranger = await world.service_with(Role.MEMBER)
    for person in (stranger, other.service, world.admin):
        await executed(http, person, found, 404, **GET)
        answer = await http.get(f"/v1/resolutions/{found['id']}", headers=person.headers)
        assert answer.status_code == (200 if person is world.admin else 404), "staff look at everything"
    await executed(http, world.service, {"id": str(uuid4())}, 404, **GET)
    await executed(http, world.service, {"id": "not-an-id"}, 422, **GET)
    loose = await sent(http, world.service, f"/sessions/{session}/calls", 201, **GET, dispatch=True)
    run = await executed(http, world.service, found, **GET)
    second = await resolved(http, world.service, session)
    outcome = {"status": "completed", "result": None}
    for call, under in ((loose, found), (run, second), ({"id": str(uuid4())}, found)):
        path = f"/resolutions/{under['id']}/report"
        refused = await sent(http, world.service, path, 404, call=call["id"], outcome=outcome)
        assert refused["code"] == "call_not_found"
    for bad in (
        {"call": run["id"]},
        {"outcome": outcome},
        {"call": run["id"], "outcome": {"status": "perhaps"}},
        {"call": run["id"], "outcome": outcome, "more": 1},
    ):
        await sent(http, world.service, f"/resolutions/{found['id']}/report", 422, **bad)


@pytest.mark.proves("D.391")
async def test_bad_requests_are_refused_and_leave_nothing(http: httpx.AsyncClient, world: World) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    before = await told(world, session, "")
    wrong: tuple[dict[str, Any], ...] = (
        {"ttl_seconds": 0},
        {"ttl_seconds": 3601},
        {"ttl_seconds": "60"},
        {"action": ""},
        {"action": "Not A Tool"},
        {"action": "x" * 65},
        {"risk": "extreme"},
        {"goal": "x" * 2001},
        {"goal": "a\x00b"},
        {"arguments": []},
        {"atlases": []},
    )
    for bad in wrong:
        await resolved(http, world.service, session, 422, **bad)
    await resolved(http, world.service, str(uuid4()), 404)
    assert await told(world, session, "") == before
    await sent(http, world.service, f"/sessions/{session}/complete")
    over = await resolved(http, world.service, session, 409)
    assert over["code"] == "external_over"


@pytest.mark.proves("D.390")
async def test_a_session_that_got_another_atlas_since_does_not_execute_under_the_old_answer(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    found = await resolved(http, world.service, session)
    # A newer version changes nothing: the session stays with the one it is bound to.
    await publish(world, desk("2.0.0"))
    assert (await executed(http, world.service, found, **GET))["next"] == "run"
    await publish(world, desk().replace(DESK, "com.acme.other"))
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows("select bind_atlases($1, $2, $3)", world.org_id, UUID(session), ["com.acme.other"])
    outdated = await executed(http, world.service, found, 409, **GET)
    assert outdated["code"] == "resolution_outdated"


@pytest.mark.proves("D.390")
async def test_executions_at_once_use_a_limit_up_exactly(http: httpx.AsyncClient, world: World) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    found = await resolved(http, world.service, session)
    path = f"/v1/resolutions/{found['id']}/execute"
    answers = await asyncio.gather(
        *(http.post(path, json={"tool": "ticket.list"}, headers=world.service.headers) for _ in range(4))
    )
    assert sorted(each.status_code for each in answers) == [201, 201, 409, 409]
    assert {each.json()["code"] for each in answers if each.status_code == 409} == {"action_rate_limited"}


@pytest.mark.proves("D.390")
async def test_one_key_under_two_resolutions_at_once_is_a_call_of_one_of_them(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """Both looked before either wrote: who comes second does not go on with a call of another resolution."""
    session = await opened(http, world.service)
    both = [await resolved(http, world.service, session, action="ticket.get") for _ in range(2)]
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute("select from job where session_id = $1 for update", UUID(session))
    body = {"key": "same", "tool": "ticket.get"}
    sending = [
        asyncio.create_task(
            http.post(f"/v1/resolutions/{each['id']}/execute", json=body, headers=world.service.headers)
        )
        for each in both
    ]
    try:
        async with asyncio.timeout(60):
            while await lock_waiters(admin, "authorize_call") < 2:
                assert not any(each.done() for each in sending), sending
                await asyncio.sleep(0.01)
    finally:
        await transaction.rollback()
        answers = [await asyncio.wait_for(each, 60) for each in sending]
    assert sorted(each.status_code for each in answers) == [201, 409]
    (refused,) = (each.json() for each in answers if each.status_code == 409)
    assert refused["code"] == "call_key_reused"
    assert await admin.fetchval("select count(*) from external_call") == 1


@pytest.mark.proves("D.390")
async def test_of_many_who_resolve_and_execute_at_once_none_is_turned_away(
    http: httpx.AsyncClient, world: World
) -> None:
    # Each goal fires a gate of its own, so that each writes what gates remember.
    hints = [
        gate(f"hint-{n}", {"type": "keyword", "patterns": [f"word{n}"]}, "advisory", guidance={"content": "Slow."})
        for n in range(MANY)
    ]  # fmt: skip
    await governed(world, desk(gates=[ONBOARDING, ROUND, *hints]))
    session = await opened(http, world.service, agrees=True)
    found = await asyncio.gather(
        *(
            resolved(
                http, world.service, session, goal=f"say word{n}", action="ticket.get", arguments=GET["arguments"]
            )
            for n in range(MANY)
        )
    )  # fmt: skip
    assert {each["decision"] for each in found} == {"allow"}
    given = {each["id"].rsplit("/", 1)[1] for each in (await permissions(http, world.service, session))["guidance"]}
    assert given == {"onboarding", *(f"hint-{n}" for n in range(MANY))}
    run = await asyncio.gather(*(executed(http, world.service, each, **GET) for each in found))
    assert {each["next"] for each in run} == {"run"}
    done = await asyncio.gather(
        *(
            sent(http, world.service, f"/resolutions/{under['id']}/report", call=call["id"], outcome={"status": "completed"})
            for under, call in zip(found, run, strict=True)
        )
    )  # fmt: skip
    assert {each["status"] for each in done} == {"completed"}
    assert (await state_in(world, UUID(session))).executed == MANY


@pytest.mark.proves("D.388")
async def test_what_is_told_on_demand_is_asked_for_by_its_id_or_by_what_a_gate_listens_for(
    http: httpx.AsyncClient, world: World
) -> None:
    prices = gate("prices", {"type": "explicit_request", "patterns": ["price*"]}, questions=[question("why", "text")])
    handbook = {"context_id": "handbook", "name": "Handbook", "content": "Page one."}
    intro = {"context_id": "intro", "name": "Intro", "content": "You work for Acme."}
    await governed(world, desk(gates=[ONBOARDING, prices], context_blocks=[intro, handbook]))
    session = await opened(http, world.service)
    early = await resolved(http, world.service, session, request="handbook", action="ticket.get")
    assert "Page one." not in {each["content"] for each in early["contexts"]}, "who has not agreed is not told"
    await sent(http, world.service, f"/sessions/{session}/answers", **AGREE)
    unknown = await resolved(http, world.service, session, request="nothing", action="ticket.get")
    assert "Page one." not in {each["content"] for each in unknown["contexts"]}
    found = await resolved(http, world.service, session, request="handbook", action="ticket.get")
    assert "Page one." in {each["content"] for each in found["contexts"]}
    assert found["questions"] == []
    asked = await resolved(http, world.service, session, request="price list", action="ticket.get")
    assert [each["gate"] for each in asked["questions"]] == ["prices"]
    fired = [data for name, data in await told(world, session) if name == "checkpoint_triggered"]
    assert [each["trigger_data"]["requested"] for each in fired if "requested" in each["trigger_data"]] == [
        "handbook", "price list",
    ]  # fmt: skip
    for bad in ("", "  ", "x" * 201, "a\nb", 5):
        await resolved(http, world.service, session, 422, request=bad, action="ticket.get")
    async with Client("http://plane", world.service.secret, transport=http._transport) as plane:
        mine = await plane.sessions.open_external("deployer")
        await mine.answer("onboarding", {"agree": True})
        again = await mine.resolve(action="ticket.get", request="handbook")
        assert "Page one." in {each["content"] for each in again.contexts}


@pytest.mark.proves("D.391")
async def test_what_is_asked_names_guidance_and_every_answer_and_row_stays_small(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    long = {"content": "x" * 100_000}
    wordy = [question(f"q{n}", "choice", options=["o" * 190 + str(o) for o in range(20)]) for n in range(20)]
    gates = [
        gate(f"g{n}", {"type": "session_start"}, questions=wordy, guidance=long, priority=100 - n) for n in range(8)
    ]
    many = [f"ticket.a{n}" for n in range(300)]
    await governed(
        world,
        desk(
            gates=gates,
            capabilities=[{"capability_id": "all", "name": "All", "actions": many}],
            policies=[{"policy_id": "no", "type": "deny", "actions": ["root.*"], "reason": "n" * 9000}],
            actions=[{"action_id": f"root.a{n}"} for n in range(300)],
            checkpoint_config={"budget": {"max_context_injection_size": 1000}},
        ),
    )
    session = await opened(http, world.service)
    headers = world.service.headers
    closed = await http.post(f"/v1/sessions/{session}/calls", json={"tool": "ticket.a1"}, headers=headers)
    made = await http.post(f"/v1/sessions/{session}/resolve", json={}, headers=headers)
    shown = await http.get(f"/v1/sessions/{session}/permissions", headers=headers)
    assert (closed.status_code, made.status_code, shown.status_code) == (409, 201, 200)
    assert max(len(each.content) for each in (closed, made, shown)) < 1_000_000
    asked = closed.json()["questions"]
    assert asked[0]["guidance"] == f"{DESK}/g0"
    assert len(asked[0]["questions"]) == 20
    assert (asked[-1]["questions"], asked[-1]["more_questions"]) == ([], 20), "its turn comes"
    denied = made.json()["denied_actions"]
    assert max(len(each["reason"]) for each in denied) == MAX_REASON
    assert await admin.fetchval("select max(octet_length(answer::text)) from resolution") < 500_000
    kept = await http.get(f"/v1/resolutions/{made.json()['id']}", headers=headers)
    assert kept.json()["questions"] == made.json()["questions"], "in full, from what was published"


@pytest.mark.proves("D.391")
async def test_resolutions_are_forgotten_unless_something_was_executed_under_them(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    session = await opened(http, world.service)
    used, unused = [await resolved(http, world.service, session, action="ticket.get", ttl_seconds=60) for _ in range(2)]
    run = await executed(http, world.service, used, tool="ticket.get")
    await clock.advance(timedelta(hours=23))
    await resolutions.forget_resolutions(world.db)
    assert await admin.fetchval("select count(*) from resolution") == 2
    await clock.advance(timedelta(hours=2))
    await resolutions.forget_resolutions(world.db)
    assert [row["id"] for row in await admin.fetch("select id from resolution")] == [UUID(used["id"])]
    gone = await http.get(f"/v1/resolutions/{unused['id']}", headers=world.service.headers)
    assert gone.status_code == 404
    await clock.advance(timedelta(days=28))
    await resolutions.forget_resolutions(world.db)
    kept = await http.get(f"/v1/resolutions/{used['id']}", headers=world.service.headers)
    assert (kept.status_code, kept.json()["decision"]) == (200, "allow"), "for 30 days it can be read"
    await clock.advance(timedelta(days=2))
    await resolutions.forget_resolutions(world.db)
    left = await admin.fetchrow("select request, answer, atlases, executed from resolution")
    assert left is not None
    assert tuple(map(str, left)) == ("{}", "{}", "[]", "True"), "its bodies are gone"
    assert (await http.get(f"/v1/resolutions/{used['id']}", headers=world.service.headers)).status_code == 404
    late = {"key": "late", "tool": "ticket.get"}
    over = await sent(http, world.service, f"/resolutions/{used['id']}/execute", 409, **late)
    assert over["code"] == "resolution_expired"
    # What it was for is kept: what became of the call can still be told.
    report = {"call": run["id"], "outcome": {"status": "failed"}}
    await sent(http, world.service, f"/resolutions/{used['id']}/report", **report)


@pytest.mark.proves("D.392")
async def test_the_client_asks_answers_executes_and_reports(
    http: httpx.AsyncClient, world: World, db: Database
) -> None:
    await governed(world)
    transport = http._transport
    async with Client("http://plane", world.service.secret, transport=transport) as plane:
        session = await plane.sessions.open_external("deployer")
        asked = await session.resolve("Delete a ticket", "ticket.delete", {"ticket_id": "T-1"})
        assert [each["gate"] for each in asked.questions] == ["onboarding"]
        assert (await session.answer("onboarding", {"agree": True})).passed
        with pytest.raises(GateClosed) as closed:
            await session.authorize("ticket.delete", {"ticket_id": "T-1"})
        assert (closed.value.gate, closed.value.code) == ("delete-confirm", "gate_closed")
        call = closed.value.questions[0]["call"]
        wrong = await plane.sessions.answer(session.id, "delete-confirm", {"sure": "no"}, call=call)
        assert (wrong.passed, wrong.shut, list(wrong.faults)) == (False, False, ["sure"])
        assert (await session.answer("delete-confirm", {"sure": "understood"}, call=call)).passed
        found = await session.resolve(action="ticket.delete", arguments={"ticket_id": "T-1"}, ttl_seconds=60)
        assert found.decision == "allow"
        assert await plane.resolutions.get(found.id) == found
        run = await session.execute(found, "ticket.delete", {"ticket_id": "T-1"}, key="delete-T-1")
        done = await session.report(found, run, "completed", result={"deleted": True})
        assert done.status == "completed"
        allowed = {each.action: each.verdict for each in (await session.permissions()).actions}
        assert (allowed["ticket.list"], allowed["ticket.delete"]) == ("allow", "deny")


@pytest.mark.proves("D.391")
async def test_what_is_left_to_forget_does_not_grow_with_what_was_executed(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """Each look reads an index that has only what is due some day."""
    session = await opened(http, world.service)
    used = await resolved(http, world.service, session, action="ticket.get")
    await executed(http, world.service, used, tool="ticket.get")
    await admin.execute("update resolution set emptied_at = now()")
    for index in ("idx_resolution_unused", "idx_resolution_bodies"):
        condition = await admin.fetchval(
            "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = $1::regclass", index
        )
        assert await admin.fetchval(f"select count(*) from resolution where {condition}") == 0, index


@pytest.mark.proves("D.391")
async def test_arguments_and_goals_that_were_only_asked_about_are_not_kept(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    session = await opened(http, world.service)
    given = await resolved(
        http, world.service, session, action="ticket.get", arguments={"note": "hush"}, goal="hush too"
    )
    assert "hush" not in str(await admin.fetchval("select r::text from resolution r"))
    path = f"/resolutions/{given['id']}/execute"
    other = await sent(http, world.service, path, 409, tool="ticket.get", arguments={"note": "loud"})
    assert other["code"] == "action_not_resolved"
    run = await sent(http, world.service, path, 201, tool="ticket.get", arguments={"note": "hush"})
    assert run["next"] == "run"


@pytest.mark.proves("D.391")
async def test_a_session_has_so_many_that_hold_and_asks_again_when_some_are_over(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolutions, "MAX_LIVE", 2)
    clock = await Clock.install(admin, datetime.now(UTC))
    session = await opened(http, world.service)
    for seconds in (60, 300):
        await resolved(http, world.service, session, action="ticket.get", ttl_seconds=seconds)
    path = f"/sessions/{session}/resolve"
    full = await sent(http, world.service, path, 409, action="ticket.get")
    assert full["code"] == "too_many_resolutions"
    assert await admin.fetchval("select count(*) from resolution") == 2
    other = await opened(http, world.service)
    await resolved(http, world.service, other, action="ticket.get")
    await clock.advance(timedelta(seconds=61))
    await resolved(http, world.service, session, action="ticket.get")


@pytest.mark.proves("D.390")
async def test_nothing_begins_under_a_resolution_that_is_over_also_with_a_key_that_is_known(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    session = await opened(http, strict.service)
    given = await resolved(http, strict.service, session, action="ticket.get", ttl_seconds=60)
    path, call = f"/resolutions/{given['id']}/execute", {"tool": "ticket.get", "key": "k"}
    asked = await sent(http, strict.service, path, 201, **call)
    assert asked["next"] == "wait"
    card = (await approvals.get_approval(strict.db, strict.admin.actor, UUID(asked["approval_id"]))).approval
    yes = ApprovalDecision(decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash)
    await decisions.decide(strict.db, strict.admin.actor, card.id, yes, Channel.API)
    await clock.advance(timedelta(seconds=61))
    over = await sent(http, strict.service, path, 409, **call)
    assert over["code"] == "resolution_expired"
    kept = await http.get(f"/v1/calls/{asked['id']}", headers=strict.service.headers)
    assert kept.json()["status"] == "approved", "it was not begun"
