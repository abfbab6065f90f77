"""Calls that give up because what they called waits, and calls that are asked for again under another key while one is in doubt."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import Channel, EffectAnswer
from cortex_plane.approvals.verbs import settlements
from cortex_plane.calls.verbs import deadlines
from cortex_plane.jobs.model.effects import PARKS_OF_A_GRANT, Verdict
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.orgs import Role
from tests.calls.test_http_calls import REFUND, asked, decide, ended, looked, opened, post
from tests.calls.test_outside_sessions import opened as opened_thread
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.waits import lock_waiters

TWO = 'policies: [{name: two, target: "*", effect: requires_approval, quorum: 2, approvers: {roles: [approver]}}]'
DENIED = 'policies: [{name: no, target: "*", effect: deny}]'


@pytest_asyncio.fixture
async def clock(world: World, admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, datetime.now(UTC))


async def trail(http: httpx.AsyncClient, world: World, session: str) -> list[str]:
    answer = await http.get("/v1/audit", params={"session_id": session, "limit": 200}, headers=world.admin.headers)
    return [entry["action"] for entry in answer.json()["items"]]


async def cards(http: httpx.AsyncClient, world: World, session: str) -> list[dict[str, Any]]:
    query = {"status": "pending", "session_id": session}
    answer = await http.get("/v1/approvals", params=query, headers=world.admin.headers)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


# Parked ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.931")
async def test_a_parked_call_goes_on_with_the_approval_that_it_had(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session, key="outer", timeout_seconds=60)
    await decide(strict, call)
    for attempt in (1, 2, 3, 4, 5):
        run = await asked(
            http, strict.service, session, key="outer", timeout_seconds=60, dispatch=True, sender=f"s{attempt}"
        )
        assert (run["next"], run["attempt"], run["id"]) == ("run", attempt, call["id"])
        receipt = await ended(http, strict.service, run, "parked", attempt=attempt, error="its subagent waits")
        assert (receipt["status"], receipt["approval_id"]) == ("parked", None)
        # Told twice the same, nothing changes.
        await ended(http, strict.service, run, "parked", attempt=attempt, error="its subagent waits")
        shown = await looked(http, strict.service, call["id"])
        assert (shown["next"], shown["status"]) == ("begin", "parked")
        # However long it waits, nobody is asked whether it happened.
        await clock.advance(timedelta(minutes=30))
        assert (await deadlines.tick(strict.db, new_id(), "scheduler")).done == []
        assert await cards(http, strict, session) == []
    assert (await trail(http, strict, session)).count("call_parked") == 5
    run = await asked(http, strict.service, session, key="outer", timeout_seconds=60, dispatch=True, sender="last")
    await ended(http, strict.service, run, "completed", result="done")
    assert (await looked(http, strict.service, call["id"]))["next"] == "use"
    # After the grant's time it needs another yes.
    other = await asked(http, strict.service, session, key="second", timeout_seconds=60)
    await decide(strict, other)
    run = await asked(http, strict.service, session, key="second", timeout_seconds=60, dispatch=True, sender="s")
    await ended(http, strict.service, run, "parked", attempt=1)
    await clock.advance(timedelta(days=2))
    late = await asked(http, strict.service, session, key="second", timeout_seconds=60, dispatch=True, sender="t")
    assert (late["next"], late["status"]) == ("wait", "awaiting")
    assert [card["kind"] for card in await cards(http, strict, session)] == ["call"]


@pytest.mark.proves("D.931")
async def test_a_parked_call_is_judged_again_and_ends_with_its_session(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    calls = [await asked(http, world.service, session, key=key, dispatch=True, sender="s") for key in ("one", "two")]
    for call in calls:
        await ended(http, world.service, call, "parked", attempt=1)
    again = await asked(http, world.service, session, key="one", dispatch=True, sender="t")
    assert (again["next"], again["attempt"]) == ("run", 2)
    # The outcome of the attempt before says nothing about this one.
    late = await ended(http, world.service, calls[0], "parked", attempt=1, status=409)
    assert late["code"] == "attempt_over"
    await ended(http, world.service, again, "parked", attempt=2)
    await apply_policies(world.db, world.admin.actor, DENIED)
    denied = await asked(http, world.service, session, key="one", dispatch=True, sender="u")
    assert (denied["next"], denied["status"]) == ("stop", "rejected")
    # What is parked did nothing, and ends with its session, however that ends.
    await post(http, world.service, f"/v1/sessions/{session}/complete")
    assert (await looked(http, world.service, calls[1]["id"]))["status"] == "rejected"


@pytest.mark.proves("D.931")
async def test_a_call_that_is_parked_after_its_session_ended_is_over(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, key="k", dispatch=True, sender="s")
    await post(http, world.service, f"/v1/sessions/{session}/fail", error="enough")
    for _ in range(2):
        assert (await ended(http, world.service, call, "parked", attempt=1))["status"] == "failed"
    shown = await looked(http, world.service, call["id"])
    assert (shown["status"], shown["next"], shown["error"]) == (
        "failed", "stop", "it was parked when its session was over",
    )  # fmt: skip


@pytest.mark.proves("D.931")
async def test_parking_ends_a_doubt_that_came_of_silence_and_no_other(
    http: httpx.AsyncClient, world: World, clock: Clock
) -> None:
    session = await opened(http, world.service)
    silent, reported, both = [
        await asked(http, world.service, session, key=key, dispatch=True, sender="s", timeout_seconds=60)
        for key in ("silent", "reported", "both")
    ]
    await ended(http, world.service, reported, "unknown")
    await clock.advance(timedelta(hours=1))
    assert (await deadlines.tick(world.db, new_id(), "scheduler")).done == ["doubted", "doubted"]
    # Silence, and then its agent says that it does not know either.
    await ended(http, world.service, both, "unknown")
    assert len(await cards(http, world, session)) == 3
    await ended(http, world.service, silent, "parked", attempt=1)
    for call in (reported, both):
        refused = await ended(http, world.service, call, "parked", attempt=1, status=409)
        assert refused["code"] == "call_in_doubt"
        # The question stands, and nothing runs.
        assert (await asked(http, world.service, session, key=call["key"], dispatch=True, timeout_seconds=60))[
            "next"
        ] == "wait"
    assert len(await cards(http, world, session)) == 2
    for attempt in ({}, {"result": 1, "attempt": 1}):
        refused = await ended(http, world.service, silent, "parked", **attempt, status=422)
        assert "parked" in refused["detail"]
    unbegun = await asked(http, world.service, session, key="l")
    refused = await ended(http, world.service, unbegun, "parked", attempt=1, status=409)
    assert refused["code"] == "call_not_begun"
    # The first process reports late, while the second one runs it.
    again = await asked(http, world.service, session, key="silent", dispatch=True, sender="t", timeout_seconds=60)
    assert (again["next"], again["attempt"]) == ("run", 2)
    late = await ended(http, world.service, silent, "parked", attempt=1, status=409)
    assert late["code"] == "attempt_over"
    assert (await looked(http, world.service, silent["id"]))["status"] == "intended"


@pytest.mark.proves("D.931")
async def test_one_approval_covers_a_bounded_number_of_parked_attempts(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session, key="k")
    for _ in range(2):
        await decide(strict, call)
        runs = 0
        while (run := await asked(http, strict.service, session, key="k", dispatch=True, sender=f"s{runs}"))[
            "next"
        ] == "run":
            await ended(http, strict.service, run, "parked", attempt=run["attempt"])
            runs += 1
        assert runs == PARKS_OF_A_GRANT + 1
        assert (run["status"], [card["kind"] for card in await cards(http, strict, session)]) == ("awaiting", ["call"])
        call = run


# Doubted ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.932")
@pytest.mark.parametrize("verdict", list(Verdict))
async def test_a_new_key_for_a_call_in_doubt_is_that_call(
    http: httpx.AsyncClient, world: World, clock: Clock, verdict: Verdict
) -> None:
    """Its process was killed in the tool, and the model was asked again."""
    session = await opened(http, world.service)
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    again: dict[str, Any] = {"key": "id-2", "dispatch": True, "sender": "t", "runner": "p2"}
    second = await asked(http, world.service, session, **again)
    assert (second["id"], second["next"], second["key"]) == (first["id"], "wait", "id-1")
    await clock.advance(timedelta(hours=1))
    assert (await deadlines.tick(world.db, new_id(), "scheduler")).done == ["doubted"]
    assert (await asked(http, world.service, session, **again))["next"] == "wait"
    # Also for the process that doubts it itself.
    assert (await asked(http, world.service, session, key="id-3", runner="p1", sender="u"))["id"] == first["id"]
    other = await asked(http, world.service, session, key="id-4", runner="p2", arguments={"order": "B"}, sender="v")
    assert other["id"] != first["id"]
    (card,) = await cards(http, world, session)
    answer = EffectAnswer(verdict=verdict)
    await settlements.answer(world.db, world.admin.actor, card["id"], answer, Channel.API)
    # Who joined it goes on with it.
    settled = await asked(http, world.service, session, **again)
    expected = {Verdict.HAPPENED: "use", Verdict.DID_NOT_HAPPEN: "run", Verdict.FAIL: "stop"}
    assert (settled["id"], settled["next"]) == (first["id"], expected[verdict])
    if verdict is Verdict.DID_NOT_HAPPEN:
        await ended(http, world.service, settled, "failed")
    # The doubt is over: whoever asks now asks for something new.
    new = await asked(http, world.service, session, key="id-5", dispatch=True, sender="w", runner="p2")
    assert (new["id"] != first["id"], new["next"]) == (True, "run")
    reused = await asked(http, world.service, session, **(again | {"arguments": {"order": "C"}}), status=409)
    assert reused["code"] == "call_key_reused"
    assert (await trail(http, world, session)).count("call_doubt_joined") == 2


@pytest.mark.proves("D.932")
async def test_equal_calls_of_one_process_and_of_those_that_do_not_say_which_both_run(
    http: httpx.AsyncClient, world: World
) -> None:
    session = await opened(http, world.service)
    runners: list[dict[str, Any]] = [{"runner": "p1"}, {}]
    for runner in runners:
        calls = [
            await asked(
                http,
                world.service,
                session,
                key=f"{number}{runner}".replace(" ", ""),
                dispatch=True,
                sender="s",
                **runner,
            )
            for number in (1, 2)
        ]
        assert [call["next"] for call in calls] == ["run", "run"]
        assert calls[0]["id"] != calls[1]["id"]
    # What only reads is read again.
    reads = [
        await asked(
            http, world.service, session, key=f"r{n}", dispatch=True, sender="s", runner=f"p{n}", read_only=True
        )
        for n in (1, 2)
    ]
    assert [call["next"] for call in reads] == ["run", "run"]
    # Another session is another conversation.
    other = await opened(http, world.service)
    call = await asked(http, world.service, other, key="other", dispatch=True, sender="s", runner="p2")
    assert call["next"] == "run"


@pytest.mark.proves("D.932")
async def test_of_two_processes_that_ask_at_once_one_acts(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    session = await opened(http, world.service)
    async with admin.transaction(), asyncio.timeout(30):
        await admin.execute("select from job where session_id = $1::text::uuid for update", session)
        asking = [
            asyncio.create_task(
                asked(http, world.service, session, key=f"k{n}", dispatch=True, sender=f"s{n}", runner=f"p{n}")
            )
            for n in (1, 2, 3)
        ]
        while True:
            if await lock_waiters(admin, "authorize_call") == len(asking):
                break
            await asyncio.sleep(0)
    calls = await asyncio.gather(*asking)
    assert len({call["id"] for call in calls}) == 1
    assert sorted(call["next"] for call in calls) == ["run", "wait", "wait"]
    # A process that died and one that took over: whoever begins it says which process runs it now.
    (run,) = [call for call in calls if call["next"] == "run"]
    await ended(http, world.service, run, "completed", result=1)
    allowed = await asked(http, world.service, session, key="late", runner="p1", sender="x", arguments={"n": 1})
    intent = {"input_hash": allowed["input_hash"], "sender": "y", "runner": "p2"}
    assert (await post(http, world.service, f"/v1/calls/{allowed['id']}/intent", **intent))["next"] == "run"
    same = await asked(http, world.service, session, key="later", runner="p1", sender="z", arguments={"n": 1})
    assert same["id"] == allowed["id"]


@pytest.mark.proves("D.932")
async def test_a_key_that_joined_stands_for_its_call_whatever_else_is_sent(
    http: httpx.AsyncClient, world: World
) -> None:
    session = await opened(http, world.service)
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    again: dict[str, Any] = {"key": "id-2", "dispatch": True, "sender": "t"}
    assert (await asked(http, world.service, session, **again, runner="p2"))["id"] == first["id"]
    others: list[dict[str, Any]] = [{}, {"runner": "p2", "read_only": True}, {"runner": "p1"}]
    for more in others:
        call = await asked(http, world.service, session, **again, **more)
        assert (call["id"], call["next"]) == (first["id"], "wait"), more
    await ended(http, world.service, first, "completed", result={"secret": 1})
    # Another identity gets no outcome of it, by either key.
    for key in ("id-1", "id-2"):
        refused = await asked(http, world.admin, session, key=key, runner="p3", sender="z", status=409)
        assert refused["code"] == "call_key_reused"
    assert (await asked(http, world.service, session, **again))["result"] == {"secret": 1}


@pytest.mark.proves("D.932")
async def test_a_resolution_does_not_go_on_with_a_call_of_another_one(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    goal: dict[str, Any] = {"status": 201, "action": "refunds.create", "arguments": REFUND}
    path = f"/v1/sessions/{session}/resolve"
    resolutions = [(await post(http, world.service, path, **goal))["id"] for _ in range(2)]

    async def execute(resolution: str, key: str, runner: str, status: int = 201) -> dict[str, Any]:
        body: dict[str, Any] = {"tool": "refunds.create", "arguments": REFUND, "key": key, "runner": runner}
        return await post(http, world.service, f"/v1/resolutions/{resolution}/execute", status=status, **body)

    first = await execute(resolutions[0], "id-1", "p1")
    assert first["next"] == "run"
    assert (await execute(resolutions[0], "id-2", "p2"))["id"] == first["id"]
    for key in ("id-2", "id-3"):
        assert (await execute(resolutions[1], key, "p2", 409))["code"] == "call_key_reused"


@pytest.mark.proves("D.932")
@pytest.mark.parametrize("end", ["terminate", "fail"])
async def test_a_doubt_outlives_its_session(http: httpx.AsyncClient, world: World, clock: Clock, end: str) -> None:
    async def open_thread(name: str = "thread") -> str:
        return str((await opened_thread(http, world.service, name))["id"])

    session = await open_thread()
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    done = await asked(
        http, world.service, session, key="done", dispatch=True, sender="s", runner="p1", tool="mail.send"
    )
    await ended(http, world.service, done, "completed")
    await post(http, world.admin if end == "terminate" else world.service, f"/v1/sessions/{session}/{end}")
    second = await open_thread()
    assert second != session
    joined = await asked(http, world.service, second, key="id-2", dispatch=True, sender="t", runner="p2")
    assert (joined["id"], joined["next"]) == (first["id"], "stop")
    assert "Nobody knows whether it happened" in joined["reason"]
    # When its time is over a person is asked, although its session is.
    await clock.advance(timedelta(hours=1))
    await deadlines.tick(world.db, new_id(), "scheduler")
    later = await asked(http, world.service, second, key="id-3", dispatch=True, sender="u", runner="p1")
    assert (later["id"], later["status"], later["next"]) == (first["id"], "uncertain", "wait")
    # What is known runs again, and another thread is another conversation.
    again = await asked(
        http, world.service, second, key="again", dispatch=True, sender="v", runner="p2", tool="mail.send"
    )
    assert again["next"] == "run"
    other = await asked(
        http, world.service, await open_thread("other"), key="o", dispatch=True, sender="w", runner="p2"
    )
    assert other["next"] == "run"


@pytest.mark.proves("D.1024")
@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_person_lifts_a_doubt_whose_session_is_over(
    http: httpx.AsyncClient, world: World, clock: Clock, verdict: Verdict, asked_before: bool
) -> None:
    session = str((await opened_thread(http, world.service, "thread"))["id"])
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    if asked_before:
        await ended(http, world.service, first, "unknown")
    await post(http, world.service, f"/v1/sessions/{session}/fail")
    second = str((await opened_thread(http, world.service, "thread"))["id"])
    again: dict[str, Any] = {"key": "id-2", "dispatch": True, "sender": "t", "runner": "p2"}
    assert (await asked(http, world.service, second, **again))["id"] == first["id"]
    await clock.advance(timedelta(hours=1))
    await deadlines.tick(world.db, new_id(), "scheduler")
    assert (await asked(http, world.service, second, **again))["next"] == "wait"
    (card,) = await cards(http, world, session)
    assert card["kind"] == "uncertain_effect"
    # The agent's own member does not answer; who settles jobs does.
    member = await world.person(Role.MEMBER)
    body = {"verdict": verdict, "result": {"refund": 1} if verdict is Verdict.HAPPENED else None}
    path = f"/v1/approvals/{card['id']}/answer"
    assert (await http.post(path, json=body, headers=member.headers)).status_code in (403, 404)
    assert (await http.post(path, json=body, headers=world.service.headers)).status_code == 403
    assert (await asked(http, world.service, second, **again))["next"] == "wait"
    answer = await http.post(path, json=body, headers=world.admin.headers)
    assert answer.status_code == 200, answer.text
    assert await cards(http, world, session) == []
    settled = await asked(http, world.service, second, **again)
    if verdict is Verdict.DID_NOT_HAPPEN:
        # A new call: it is judged anew, and nothing of the old one is taken for its own.
        assert (settled["next"], settled["attempt"], settled["result"]) == ("run", 1, None)
        assert settled["id"] != first["id"]
        assert (await looked(http, world.service, first["id"]))["status"] == "failed"
    else:
        expected = ("use", {"refund": 1}) if verdict is Verdict.HAPPENED else ("stop", None)
        assert (settled["id"], settled["next"], settled["result"]) == (first["id"], *expected)
    assert "effect_settled" in await trail(http, world, session)


async def answered(http: httpx.AsyncClient, world: World, session: str, verdict: Verdict, **more: Any) -> None:
    (card,) = await cards(http, world, session)
    body = {"verdict": verdict, **more}
    answer = await http.post(f"/v1/approvals/{card['id']}/answer", json=body, headers=world.admin.headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.proves("D.1100")
async def test_looks_do_not_use_an_answer_up_and_a_repeated_try_has_it_again(
    http: httpx.AsyncClient, world: World
) -> None:
    session = await opened(http, world.service)
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    await ended(http, world.service, first, "unknown", attempt=1)
    await answered(http, world, session, Verdict.HAPPENED, result={"refund": 1})
    # Whoever reads the call, waiting or not.
    for wait in (0, 1):
        assert (await looked(http, world.service, first["id"], wait=wait))["next"] == "use"
    again: dict[str, Any] = {"key": "id-2", "dispatch": True, "runner": "p2"}
    # The response of the first try may be lost on its way.
    for sender, is_new in (("t", True), ("t", True), ("u", False)):
        call = await asked(http, world.service, session, sender=sender, **again)
        assert (call["id"], call["next"], call["newly_answered"]) == (first["id"], "use", is_new)
    other = await asked(http, world.service, session, key="id-3", dispatch=True, runner="p2", sender="v")
    assert (other["id"] != first["id"], other["next"]) == (True, "run")


@pytest.mark.proves("D.1100")
async def test_an_agent_that_reports_what_people_answered_has_their_answer(
    http: httpx.AsyncClient, world: World
) -> None:
    session = await opened(http, world.service)
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    await ended(http, world.service, first, "unknown", attempt=1)
    await answered(http, world, session, Verdict.HAPPENED, result={"refund": 1})
    await ended(http, world.service, first, "completed", status=409, result={"refund": 2})
    await ended(http, world.service, first, "completed", result={"refund": 1})
    other = await asked(http, world.service, session, key="id-2", dispatch=True, runner="p2", sender="t")
    assert (other["id"] != first["id"], other["next"]) == (True, "run")


@pytest.mark.proves("D.1101")
@pytest.mark.parametrize("end", ["terminate", "fail"])
async def test_what_did_not_happen_may_be_done_after_its_session_ended(
    http: httpx.AsyncClient, world: World, end: str
) -> None:
    session = str((await opened_thread(http, world.service, "thread"))["id"])
    first = await asked(http, world.service, session, key="id-1", dispatch=True, sender="s", runner="p1")
    await ended(http, world.service, first, "unknown", attempt=1)
    await answered(http, world, session, Verdict.DID_NOT_HAPPEN)
    await post(http, world.admin if end == "terminate" else world.service, f"/v1/sessions/{session}/{end}")
    second = str((await opened_thread(http, world.service, "thread"))["id"])
    ids = set()
    # By a new key and by its own.
    for key in ("id-2", "id-1"):
        call = await asked(http, world.service, second, key=key, dispatch=True, sender=f"t{key}", runner="p2")
        assert (call["next"], call["attempt"], call["session_id"]) == ("run", 1, second)
        await ended(http, world.service, call, "completed", attempt=1)
        ids.add(call["id"])
    assert len(ids | {first["id"]}) == 3
    assert (await looked(http, world.service, first["id"]))["status"] == "failed"
    assert "call_settled" in await trail(http, world, session)
    await post(http, world.service, f"/v1/sessions/{second}/complete")


@pytest.mark.proves("D.1103")
@pytest.mark.parametrize("name", ["fail", "withdrawn"])
async def test_names_of_people_say_nothing_about_how_a_call_was_settled(
    http: httpx.AsyncClient, world: World, name: str
) -> None:
    named = await world.person(Role.ADMIN, name=name)
    session = await opened(http, world.service)
    call: dict[str, Any] = {"dispatch": True, "runner": "p1"}
    first = await asked(http, world.service, session, key="id-1", sender="s", **call)
    await ended(http, world.service, first, "unknown", attempt=1)
    (card,) = await cards(http, world, session)
    path = f"/v1/approvals/{card['id']}/answer"
    verdict = Verdict.FAIL if name == "fail" else Verdict.DID_NOT_HAPPEN
    answer = await http.post(path, json={"verdict": verdict}, headers=named.headers)
    assert answer.status_code == 200, answer.text
    if verdict is Verdict.FAIL:
        stopped = await asked(http, world.service, session, key="id-2", sender="t", **call)
        assert (stopped["id"], stopped["next"]) == (first["id"], "stop")
    else:
        # It is cleared, and nobody has withdrawn it.
        await ended(http, world.service, first, "withdrawn")
        assert (await looked(http, world.service, first["id"]))["status"] == "rejected"
    other = await asked(http, world.service, session, key="id-3", sender="u", **call)
    assert (other["id"] != first["id"], other["next"]) == (True, "run")


@pytest.mark.proves("D.1024")
async def test_those_who_approved_it_lift_the_doubt_and_nobody_else(
    http: httpx.AsyncClient, world: World, clock: Clock
) -> None:
    ann, bob = [await world.person(Role.APPROVER, name=name) for name in ("Ann", "Bob")]
    await apply_policies(world.db, world.admin.actor, TWO)
    session = str((await opened_thread(http, world.service, "thread"))["id"])
    call: dict[str, Any] = {"key": "id-1", "runner": "p1", "on_uncertain": "probe", "timeout_seconds": 60}
    first = await asked(http, world.service, session, **call)
    for person in (ann, bob):
        await decide(world, first, by=person)
    run = await asked(http, world.service, session, dispatch=True, sender="s", **call)
    assert run["next"] == "run"
    # Its agent was to look, and its session ended instead.
    await clock.advance(timedelta(hours=1))
    await deadlines.tick(world.db, new_id(), "scheduler")
    await post(http, world.service, f"/v1/sessions/{session}/fail")
    second = str((await opened_thread(http, world.service, "thread"))["id"])
    again: dict[str, Any] = {"key": "id-2", "dispatch": True, "sender": "t", "runner": "p2", "timeout_seconds": 60}
    assert (await asked(http, world.service, second, **again))["next"] == "wait"
    settle = f"/v1/jobs/{run['job_id']}/calls/{run['id']}/settle"
    refused = await http.post(settle, json={"verdict": "happened"}, headers=world.admin.headers)
    assert refused.status_code == 403
    for person, status in ((ann, "uncertain"), (bob, "completed")):
        answer = await http.post(settle, json={"verdict": "happened"}, headers=person.headers)
        assert answer.status_code == 200, answer.text
        assert (await looked(http, world.service, run["id"]))["status"] == status
    assert (await asked(http, world.service, second, **again))["next"] == "use"


@pytest.mark.proves("D.932")
async def test_of_two_allowed_calls_of_the_same_request_one_begins(http: httpx.AsyncClient, world: World) -> None:
    session = await opened(http, world.service)
    calls = [await asked(http, world.service, session, key=f"k{n}", sender=f"s{n}", runner=f"p{n}") for n in (1, 2)]
    assert len({call["id"] for call in calls}) == 2

    async def begin(call: dict[str, Any], sender: str, **more: Any) -> dict[str, Any]:
        body = {"input_hash": call["input_hash"], "sender": sender, **more}
        return await post(http, world.service, f"/v1/calls/{call['id']}/intent", **body)

    # Who does not say which process begins it leaves the one that asked.
    assert (await begin(calls[0], "s1"))["next"] == "run"
    equal = await asked(http, world.service, session, key="k3", sender="s3", runner="p1", dispatch=True)
    assert equal["next"] == "run"
    refused = await begin(calls[1], "s2", runner="p2", status=409)
    assert refused["code"] == "request_in_doubt"
    for call in (calls[0], equal):
        await ended(http, world.service, call, "completed", attempt=1)
    assert (await begin(calls[1], "s2", runner="p2"))["next"] == "run"


@pytest.mark.proves("D.932")
async def test_only_calls_that_may_be_in_doubt_are_looked_through(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    session = await opened(http, world.service)
    outcomes = ["completed", "failed", "parked", "unknown", None]
    for number, outcome in enumerate(outcomes):
        call = await asked(
            http,
            world.service,
            session,
            key=f"k{number}",
            dispatch=True,
            sender="s",
            runner="p",
            arguments={"n": number},
        )
        if outcome is not None:
            await ended(http, world.service, call, outcome, attempt=1)
    query = "select key from external_call where session_id = $1::text::uuid and unsettled order by key"
    assert [row["key"] for row in await admin.fetch(query, session)] == ["k3", "k4"]
    definition = await admin.fetchval("select pg_get_indexdef('idx_external_call_request'::regclass)")
    assert definition.endswith("WHERE unsettled")
