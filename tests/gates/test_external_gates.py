"""Gates around agents that run elsewhere, over HTTP: what they are asked, what answers do, and what never runs without them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.atlases import steward
from tests.fixtures.clock import Clock
from tests.fixtures.external_gates import (
    ADMIN,
    AGREE,
    DELETE,
    DELETE_CONFIRM,
    DESK,
    ONBOARDING,
    POLICIES,
    ROUND,
    SURE,
    WENT_WRONG,
    WIRE,
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
from tests.fixtures.people import World, apply_policies

LIST = {"tool": "ticket.list", "dispatch": True}
MANY = 25


@pytest.mark.proves("D.380")
async def test_a_gated_call_is_asked_about_and_the_same_call_goes_on_once_it_is_answered(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    path = f"/sessions/{session}/calls"
    call = {**DELETE, "key": "delete-T-1", "dispatch": True}
    closed = await sent(http, world.service, path, 409, **call)
    assert closed["code"] == "gate_closed"
    (asked,) = closed["questions"]
    assert (asked["gate"], asked["atlas"], asked["action"]) == ("delete-confirm", DESK, "ticket.delete")
    assert [each["question_id"] for each in asked["questions"]] == ["sure"]
    # Asked again it is the same question, and no try is lost.
    again = await sent(http, world.service, path, 409, **call)
    assert again["questions"] == closed["questions"]
    done = await sent(http, world.service, f"/sessions/{session}/answers", **SURE)
    assert (done["passed"], done["questions"]) == (True, [])
    run = await sent(http, world.service, path, 201, **call)
    assert (run["status"], run["next"]) == ("intended", "run")
    # The pass was for one call.
    other = await sent(http, world.service, path, 409, **{**call, "key": "again"})
    assert other["code"] == "gate_closed"
    # The same key is the same call, whatever its gates say now.
    same = await sent(http, world.service, path, 201, **call)
    assert same["id"] == run["id"]
    facts = await told(world, session)
    of_delete = [name for name, data in facts if data["checkpoint_id"] == "delete-confirm"]
    assert of_delete[:5] == [
        "checkpoint_triggered",
        "checkpoint_blocked",
        "checkpoint_blocked",
        "checkpoint_response",
        "checkpoint_passed",
    ]
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.380")
async def test_the_start_of_a_session_asks_before_anything_else(http: httpx.AsyncClient, world: World) -> None:
    await governed(world)
    session = await opened(http, world.service)
    waiting = (await permissions(http, world.service, session))["waiting"]
    assert [each["gate"] for each in waiting] == ["onboarding"], "asked with the opening"
    get = {"tool": "ticket.get", "arguments": {"ticket_id": "T-1"}, "dispatch": True}
    closed = await sent(http, world.service, f"/sessions/{session}/calls", 409, **get)
    assert [each["gate"] for each in closed["questions"]] == ["onboarding"]
    await sent(http, world.service, f"/sessions/{session}/answers", **AGREE)
    run = await sent(http, world.service, f"/sessions/{session}/calls", 201, **get)
    assert run["next"] == "run"
    allowed = (await permissions(http, world.service, session))["actions"]
    (reading,) = [each for each in allowed if each["action"] == "ticket.get"]
    assert (reading["verdict"], reading["rule"]) == ("allow", f"capability:{DESK}/basic")


@pytest.mark.proves("D.381")
async def test_wrong_answers_are_tries_and_out_of_tries_the_call_is_refused_for_good(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    calls, answers = f"/sessions/{session}/calls", f"/sessions/{session}/answers"
    await sent(http, world.service, calls, 409, **DELETE)
    wrong = {"gate": "delete-confirm", "answers": {"sure": "not understood"}}
    first = await sent(http, world.service, answers, **wrong)
    assert (first["passed"], first["shut"], set(first["faults"])) == (False, False, {"sure"})
    asked = await sent(http, world.service, calls, 409, **DELETE)
    assert (asked["questions"][0]["attempts_left"], bool(asked["questions"][0]["fault"])) == (2, True)
    await sent(http, world.service, answers, gate="delete-confirm", answers={"sure": False})
    last = await sent(http, world.service, answers, gate="delete-confirm", answers={})
    assert (last["passed"], last["shut"]) == (False, True)
    refused = await sent(http, world.service, calls, 201, **DELETE)
    assert (refused["verdict"], refused["status"], refused["next"]) == ("deny", "rejected", "stop")
    assert refused["rule"] == f"gate:{DESK}/delete-confirm"
    assert "shut" in refused["reason"]
    # Other arguments are another call.
    other = {"tool": "ticket.delete", "arguments": {"ticket_id": "T-2"}}
    assert (await sent(http, world.service, calls, 409, **other))["code"] == "gate_closed"


@pytest.mark.proves("D.381")
async def test_a_gate_of_the_session_that_is_shut_ends_it_with_the_reason(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service)
    no = {"gate": f"{DESK}/onboarding", "answers": {"agree": False}}
    for shut in (False, False, True):
        assert (await sent(http, world.service, f"/sessions/{session}/answers", **no))["shut"] is shut
    over = await sent(http, world.service, f"/sessions/{session}/calls", 409, tool="ticket.get")
    assert over["code"] == "external_over"
    (failed,) = [data for name, data in await told(world, session, "job_failed")]
    assert "onboarding" in failed["error"]
    assert (await sent(http, world.service, f"/sessions/{session}/answers", 409, **AGREE))["code"] in (
        "external_over",
        "gate_not_waiting",
    )


@pytest.mark.proves("D.381")
async def test_an_accepted_answer_told_twice_is_answered_the_same_and_others_are_refused(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    path = f"/sessions/{session}/answers"
    before = await told(world, session)
    again = await sent(http, world.service, path, **AGREE)
    assert again["passed"]
    for draft, code in (
        ({"gate": "delete-confirm", "answers": {"sure": "understood"}}, "gate_not_waiting"),
        ({"gate": "no-such-gate", "answers": {}}, "gate_not_waiting"),
    ):
        assert (await sent(http, world.service, path, 409, **draft))["code"] == code
    for bad in (
        {"gate": "", "answers": {}},
        {"gate": "onboarding"},
        {"gate": "onboarding", "answers": []},
        {"gate": "onboarding", "answers": {}, "call": "NOT-HEX"},
        {"gate": "onboarding", "answers": {}, "unlock": ["admin"]},
    ):
        await sent(http, world.service, path, 422, **bad)
    assert await told(world, session) == before, "nothing of all that changed anything"


@pytest.mark.proves("D.382")
async def test_only_agents_that_run_elsewhere_are_answered_for_over_the_api(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    made = await sent(http, world.admin, "/sessions", 201, agent="deployer")
    for path, body in (("answers", AGREE), ("resolve", {"action": "ticket.get"}), ("calls", {"tool": "ticket.get"})):
        refused = await sent(http, world.admin, f"/sessions/{made['id']}/{path}", 409, **body)
        assert refused["code"] == "not_external"
    session = await opened(http, world.service)
    stranger = await world.service_with(Role.MEMBER)
    await sent(http, stranger, f"/sessions/{session}/answers", 404, **AGREE)
    guest = await world.person(Role.GUEST)
    await sent(http, guest, f"/sessions/{session}/answers", 403, **AGREE)
    assert [each["gate"] for each in (await permissions(http, world.service, session))["waiting"]] == ["onboarding"]


@pytest.mark.proves("D.383")
async def test_policies_and_gates_both_speak_and_the_stricter_holds(http: httpx.AsyncClient, strict: World) -> None:
    """In an org where whatever changes something needs a person."""
    await governed(strict)
    session = await opened(http, strict.service, agrees=True)
    path = f"/sessions/{session}/calls"
    for tool, verdict, rule in (
        ("ticket.list", "requires_approval", "default:"),
        ("root.shell", "deny", f"atlas:{DESK}/no-root"),
        ("never.named", "deny", "atlas:default"),
        ("wire.send", "requires_approval", f"gate:{DESK}/wire"),
    ):
        call = await sent(http, strict.service, path, 201, tool=tool)
        assert call["verdict"] == verdict, call
        assert call["rule"].startswith(rule)
    misfit = await sent(http, strict.service, path, 201, tool="ticket.get", arguments={})
    assert (misfit["verdict"], misfit["rule"]) == ("deny", "action:ticket.get")


async def decide(world: World, call: dict[str, Any], choice: Choice = Choice.APPROVED) -> str | None:
    """What the card asked."""
    id = UUID(call["approval_id"])
    card = (await approvals.get_approval(world.db, world.admin.actor, id)).approval
    decision = ApprovalDecision(decision=choice, version=card.version, input_hash=card.input_hash)
    await decisions.decide(world.db, world.admin.actor, id, decision, Channel.API)
    return card.question


async def intended(http: httpx.AsyncClient, world: World, call: dict[str, Any], status: int = 200) -> dict[str, Any]:
    return await sent(http, world.service, f"/calls/{call['id']}/intent", status, input_hash=call["input_hash"])


@pytest.mark.proves("D.383")
async def test_a_gate_for_people_is_a_card_with_its_questions_and_no_standing_approval_speaks_for_them(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    wire = {"tool": "wire.send", "arguments": {"cents": 5}}
    call = await sent(http, world.service, f"/sessions/{session}/calls", 201, **wire)
    assert (call["verdict"], call["next"]) == ("requires_approval", "wait")
    asked = await decide(world, call)
    assert asked is not None
    assert "About checked?" in asked
    run = await intended(http, world, call)
    assert run["next"] == "run"
    facts = [(name, data["checkpoint_id"]) for name, data in await told(world, session)]
    assert ("checkpoint_passed", "wire") in facts
    # Their yes was for one call.
    other = await sent(http, world.service, f"/sessions/{session}/calls", 201, **wire)
    assert other["verdict"] == "requires_approval"
    await decide(world, other, Choice.DENIED)
    again = await sent(http, world.service, f"/sessions/{session}/calls", 201, **wire)
    assert (again["verdict"], again["rule"]) == ("deny", "turned down before, and unchanged")


@pytest.mark.proves("D.384")
async def test_what_was_allowed_is_judged_again_when_it_begins(http: httpx.AsyncClient, world: World) -> None:
    """Two calls, one pass: whichever begins first has it, and the other is asked again and goes on after that."""
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    calls, answers = f"/sessions/{session}/calls", f"/sessions/{session}/answers"
    await sent(http, world.service, calls, 409, **DELETE)
    await sent(http, world.service, answers, **SURE)
    one, two = [await sent(http, world.service, calls, 201, **DELETE) for _ in range(2)]
    assert (one["next"], two["next"]) == ("begin", "begin")
    assert (await intended(http, world, one))["next"] == "run"
    closed = await intended(http, world, two, 409)
    assert closed["code"] == "gate_closed"
    kept = await http.get(f"/v1/calls/{two['id']}", headers=world.service.headers)
    assert kept.json()["status"] == "allowed", "it waits for its answer, and is not refused for good"
    await sent(http, world.service, answers, **SURE)
    assert (await intended(http, world, two))["next"] == "run"


@pytest.mark.proves("D.384")
async def test_two_calls_at_once_with_one_pass_and_one_of_them_runs(http: httpx.AsyncClient, world: World) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    calls = f"/v1/sessions/{session}/calls"
    await sent(http, world.service, f"/sessions/{session}/calls", 409, **DELETE)
    await sent(http, world.service, f"/sessions/{session}/answers", **SURE)
    body = {**DELETE, "dispatch": True}
    found = await asyncio.gather(*(http.post(calls, json=body, headers=world.service.headers) for _ in range(5)))
    assert sorted(each.status_code for each in found) == [201, 409, 409, 409, 409]
    assert {each.json()["code"] for each in found if each.status_code == 409} == {"gate_closed"}
    (run,) = [each.json() for each in found if each.status_code == 201]
    assert run["next"] == "run"


@pytest.mark.proves("D.384")
async def test_answers_at_once_pass_a_gate_once_and_wrong_ones_are_counted_each(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world)
    session = await opened(http, world.service)
    path = f"/v1/sessions/{session}/answers"
    found = await asyncio.gather(*(http.post(path, json=AGREE, headers=world.service.headers) for _ in range(4)))
    assert [each.status_code for each in found] == [200] * 4
    assert all(each.json()["passed"] for each in found)
    names = [name for name, _ in await told(world, session)]
    assert names.count("checkpoint_passed") == names.count("checkpoint_response") == 1
    other = await opened(http, world.service)
    path = f"/v1/sessions/{other}/answers"
    no = {"gate": "onboarding", "answers": {"agree": False}}
    found = await asyncio.gather(*(http.post(path, json=no, headers=world.service.headers) for _ in range(4)))
    assert sorted(each.status_code for each in found) == [200, 200, 200, 409], "it has three tries"
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.384")
async def test_of_many_requests_at_once_none_is_turned_away_for_the_others(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world, desk(gates=[ONBOARDING, DELETE_CONFIRM, WENT_WRONG, ROUND]))
    session = await opened(http, world.service, agrees=True)
    path = f"/v1/sessions/{session}"
    calls = [{"tool": "ticket.delete", "arguments": {"ticket_id": f"T-{n}"}, "dispatch": True} for n in range(MANY)]

    async def all_at_once(requests: list[tuple[str, dict[str, Any]]], status: int) -> list[dict[str, Any]]:
        found = await asyncio.gather(
            *(http.post(where, json=body, headers=world.service.headers) for where, body in requests)
        )
        said = Counter((each.status_code, each.json().get("code")) for each in found)
        assert [code for code, _ in said] == [status], said
        return [each.json() for each in found]

    asked = await all_at_once([(f"{path}/calls", call) for call in calls], 409)
    assert {each["code"] for each in asked} == {"gate_closed"}
    names = [each["questions"][-1]["call"] for each in asked]
    state = await state_in(world, UUID(session))
    assert sorted(each.call for each in state.open) == sorted(names), "whatever was asked is remembered"
    told = await all_at_once([(f"{path}/answers", SURE | {"call": name}) for name in names], 200)
    assert all(each["passed"] for each in told)
    run = await all_at_once([(f"{path}/calls", call) for call in calls], 201)
    assert {each["next"] for each in run} == {"run"}
    failed = {"status": "failed", "error": "no"}
    await all_at_once([(f"/v1/calls/{each['id']}/outcome", failed) for each in run], 200)
    state = await state_in(world, UUID(session))
    assert (state.executed, state.passes, state.open) == (MANY, (), ()), "each counts, and counts once"


@pytest.mark.proves("D.384")
async def test_intents_at_once_begin_each_and_are_counted_each(http: httpx.AsyncClient, world: World) -> None:
    await governed(world, desk(gates=[ONBOARDING, ROUND]))
    session = await opened(http, world.service, agrees=True)
    get = {"tool": "ticket.get", "arguments": {"ticket_id": "T-1"}}
    calls = [await sent(http, world.service, f"/sessions/{session}/calls", 201, **get) for _ in range(MANY)]
    found = await asyncio.gather(*(intended(http, world, call) for call in calls))
    assert {each["next"] for each in found} == {"run"}
    assert (await state_in(world, UUID(session))).executed == MANY


@pytest.mark.proves("D.385")
async def test_limits_are_used_up_by_running_and_never_by_asking(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    path = f"/sessions/{session}/calls"
    for _ in range(3):
        await sent(http, world.service, f"/sessions/{session}/resolve", 201, action="ticket.list")
    assert (await sent(http, world.service, path, 201, tool="ticket.list"))["next"] == "begin"
    for _ in range(2):
        assert (await sent(http, world.service, path, 201, **LIST))["next"] == "run"
    limited = await sent(http, world.service, path, 409, **LIST, key="third")
    assert limited["code"] == "action_rate_limited"
    await clock.advance(timedelta(seconds=61))
    assert (await sent(http, world.service, path, 201, **LIST, key="third"))["next"] == "run"
    # A budget is for the whole session, and does not come back.
    export = {"tool": "export.all", "dispatch": True}
    assert (await sent(http, world.service, path, 201, **export))["next"] == "run"
    over = await sent(http, world.service, path, 201, **export)
    assert (over["next"], over["rule"]) == ("stop", f"atlas:{DESK}/exports")


@pytest.mark.proves("D.385")
async def test_what_is_sent_again_is_neither_asked_about_nor_counted_twice(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    policies = [{"policy_id": "once", "type": "budget", "actions": ["ticket.delete"], "max_calls": 1}]
    await governed(world, desk(gates=[DELETE_CONFIRM], policies=policies))
    session = await opened(http, world.service)
    path = f"/sessions/{session}/calls"
    call = {**DELETE, "dispatch": True, "key": "k", "on_uncertain": "retry_with_key", "timeout_seconds": 1}
    await sent(http, world.service, path, 409, **call)
    await sent(http, world.service, f"/sessions/{session}/answers", **SURE)
    run = await sent(http, world.service, path, 201, **call, sender="one")
    assert run["next"] == "run"
    await clock.advance(timedelta(minutes=10))
    again = await sent(http, world.service, path, 201, **call, sender="two")
    assert (again["id"], again["next"], again["attempt"]) == (run["id"], "run", 2)
    # A new one is over the budget; nothing else was counted.
    await sent(http, world.service, path, 409, **{**call, "key": "l"})
    await sent(http, world.service, f"/sessions/{session}/answers", **SURE)
    assert (await sent(http, world.service, path, 201, **{**call, "key": "l"}))["next"] == "stop"


@pytest.mark.proves("D.386")
async def test_code_of_workers_is_not_loaded_here_and_its_gates_stay_shut(
    http: httpx.AsyncClient, world: World
) -> None:
    checked = question("why", "text", validation={"custom_validator": "is-sane"})
    gates = [gate("watched", {"type": "custom", "trigger_id": "mood"}, questions=[question("ok", "boolean")])]
    await governed(world, desk(gates=gates))
    session = await opened(http, world.service)
    call = await sent(http, world.service, f"/sessions/{session}/calls", 201, tool="export.one")
    assert (call["verdict"], call["rule"]) == ("deny", f"gate:{DESK}/watched")
    assert "`mood`" in call["reason"]
    assert "workers" in call["reason"]
    blocked = [data for name, data in await told(world, session) if name == "checkpoint_blocked"]
    assert blocked[0]["blocked_action"] == "export.one"
    resolved = await sent(http, world.service, f"/sessions/{session}/resolve", 201)
    assert resolved["decision"] == "deny"
    assert all("`mood`" in each["reason"] for each in resolved["denied_actions"])
    await governed(world, desk("2.0.0", [gate("sane", {"type": "session_start"}, questions=[checked])]))
    session = await opened(http, world.service)
    answer = {"gate": "sane", "answers": {"why": "because I want to"}}
    refused = await sent(http, world.service, f"/sessions/{session}/answers", **answer)
    assert not refused["passed"]
    assert "`is-sane`" in refused["faults"]["why"]


@pytest.mark.proves("D.386", "D.342")
async def test_what_a_gate_forbids_that_only_workers_can_ask_is_forbidden_here(
    http: httpx.AsyncClient, world: World
) -> None:
    mood = {"type": "custom", "trigger_id": "mood"}
    denies = gate("watched", mood, mode="advisory", questions=[], deny_actions=["export.*"])
    await governed(world, desk(gates=[denies]))
    session = await opened(http, world.service)
    call = await sent(http, world.service, f"/sessions/{session}/calls", 201, tool="export.one")
    assert (call["verdict"], call["rule"]) == ("deny", f"gate:{DESK}/watched")
    get = {"tool": "ticket.get", "arguments": {"ticket_id": "T-1"}}
    assert (await sent(http, world.service, f"/sessions/{session}/calls", 201, **get))["verdict"] == "allow"
    left = [data for name, data in await told(world, session) if name == "checkpoint_skipped"]
    assert len(left) == 1
    assert "`mood`" in left[0]["reason"]


@pytest.mark.proves("D.387")
async def test_the_end_of_a_call_and_of_a_session_fire_their_gates(http: httpx.AsyncClient, world: World) -> None:
    await governed(world)
    session = await opened(http, world.service, agrees=True)
    get = {"tool": "ticket.get", "arguments": {"ticket_id": "T-1"}, "dispatch": True}
    for outcome in ({"status": "completed", "result": 1}, {"status": "failed", "error": "gone"}):
        call = await sent(http, world.service, f"/sessions/{session}/calls", 201, **get)
        for _ in range(2):
            await sent(http, world.service, f"/calls/{call['id']}/outcome", **outcome)
    facts = [(name, data["checkpoint_id"]) for name, data in await told(world, session)]
    assert facts.count(("checkpoint_triggered", "was-read")) == 2, "told twice, it counts once"
    assert facts.count(("checkpoint_triggered", "went-wrong")) == 1
    guided = (await permissions(http, world.service, session))["guidance"]
    assert [each["id"] for each in guided if each["by"].endswith("went-wrong")] == [f"{DESK}/went-wrong"]
    await sent(http, world.service, f"/sessions/{session}/complete")
    assert (await told(world, session))[-1][1]["checkpoint_id"] == "goodbye"
    failing = await opened(http, world.service)
    await sent(http, world.service, f"/sessions/{failing}/fail", error="enough")
    assert (await told(world, failing))[-1][1]["checkpoint_id"] == "goodbye"
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.387")
async def test_permissions_show_what_is_open_and_which_gate_did_it(http: httpx.AsyncClient, world: World) -> None:
    await governed(world, desk(gates=[ONBOARDING, ADMIN, DELETE_CONFIRM]))
    session = await opened(http, world.service, agrees=True)
    found = await permissions(http, world.service, session)
    opened_by = {each["id"]: (each["open"], each["by"]) for each in found["capabilities"]}
    assert opened_by[f"{DESK}/basic"] == (True, f"{DESK}/onboarding")
    assert opened_by[f"{DESK}/admin"] == (False, None)
    verdicts = {each["action"]: (each["verdict"], each["rule"]) for each in found["actions"]}
    assert verdicts["ticket.list"] == ("allow", f"capability:{DESK}/basic")
    assert verdicts["ticket.delete"] == ("deny", f"gate:{DESK}/delete-confirm")
    assert verdicts["user.rename"] == ("deny", f"gate:{DESK}/admin")
    assert [each["id"] for each in found["contexts"]] == [f"{DESK}/intro"]
    assert list(found["passed"]) == [f"{DESK}/onboarding"]
    before = await told(world, session)
    assert await permissions(http, world.service, session) == found
    assert await told(world, session) == before, "looking changes nothing"
    # Policies have their word, and other orgs and other people see nothing.
    await apply_policies(world.db, world.admin.actor, 'policies: [{name: no, target: "ticket.*", effect: deny}]')
    denied = {each["action"]: each for each in (await permissions(http, world.service, session))["actions"]}
    assert denied["ticket.list"]["verdict"] == "deny"
    assert denied["ticket.list"]["rule"].startswith("org:no")
    stranger = await world.service_with(Role.MEMBER)
    answer = await http.get(f"/v1/sessions/{session}/permissions", headers=stranger.headers)
    assert answer.status_code == 404


@pytest.mark.proves("D.387")
async def test_permissions_of_a_session_that_a_worker_runs_and_of_one_that_nothing_governs(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    await governed(world)
    made = await sent(http, world.admin, "/sessions", 201, agent="deployer")
    found = await permissions(http, world.admin, made["id"])
    assert [each["gate"] for each in found["waiting"]] == ["onboarding"]
    assert {each["verdict"] for each in found["actions"]} == {"deny"}
    free = await sent(http, other.admin, "/sessions", 201, agent="deployer")
    assert (await permissions(http, other.admin, free["id"]))["capabilities"] == []
    answer = await http.get(f"/v1/sessions/{made['id']}/permissions", headers=other.admin.headers)
    assert answer.status_code == 404


ROOT = {"policy_id": "no-reset", "type": "deny", "actions": ["root.reset"], "reason": "Nobody is root here."}
SIGNED = {"policy_id": "signed", "type": "requires_approval", "actions": ["ticket.print"]}
WIRES = {"policy_id": "wiring", "type": "allow", "actions": ["wire.send"]}
ARGUMENTS = {"ticket.get": {"ticket_id": "T-1"}}


async def _found_out(http: httpx.AsyncClient, world: World, session: str, action: str) -> tuple[str, str, list[str]]:
    """What becomes of a call, in the words of permissions: the state, who is asked, and by which gates."""
    body = {"tool": action, "arguments": ARGUMENTS.get(action, {})}
    answer = await http.post(f"/v1/sessions/{session}/calls", json=body, headers=world.service.headers)
    told = answer.json()
    if answer.status_code == 409:
        assert told["code"] == "gate_closed", told
        return "asks_first", "agent", [f"{each['atlas']}/{each['gate']}" for each in told["questions"]]
    assert answer.status_code == 201, told
    if told["status"] == "awaiting":
        gates = [told["rule"].removeprefix("gate:")] if told["rule"].startswith("gate:") else []
        return "asks_first", "person", gates
    return {"allowed": "allowed", "rejected": "denied"}[told["status"]], "", []


@pytest.mark.proves("D.387", "D.398")
async def test_permissions_tell_what_is_asked_first_from_what_is_denied_and_calls_find_the_same(
    http: httpx.AsyncClient, world: World
) -> None:
    gates = [ONBOARDING, DELETE_CONFIRM, ADMIN, WIRE]
    await governed(world, desk(gates=gates, policies=[*POLICIES, ROOT, SIGNED, WIRES]))
    session = await opened(http, world.service)

    async def states() -> dict[str, tuple[str, str, list[str]]]:
        found = await permissions(http, world.service, session)
        return {each["action"]: (each["state"], each["whom"] or "", each["asks"]) for each in found["actions"]}

    # Whatever is not denied waits for the start's question; what is denied stays so, whoever answers.
    at_first = await states()
    start = ("asks_first", "agent", [f"{DESK}/onboarding"])
    assert at_first["root.reset"] == ("denied", "", [])
    assert [action for action, state in at_first.items() if state != start] == ["root.reset"]
    await sent(http, world.service, f"/sessions/{session}/answers", **AGREE)

    now = await states()
    assert now == now | {
        "ticket.get": ("allowed", "", []),
        "ticket.delete": ("asks_first", "agent", [f"{DESK}/delete-confirm"]),
        "user.rename": ("asks_first", "agent", [f"{DESK}/admin"]),
        "wire.send": ("asks_first", "person", [f"{DESK}/wire"]),
        "ticket.print": ("asks_first", "person", []),
        "root.reset": ("denied", "", []),
    }
    for action, state in now.items():
        assert await _found_out(http, world, session, action) == state, action
    found = await permissions(http, world.service, session)
    asking = {each["gate"]: (each["whom"], each["questions"]) for each in found["asking"]}
    assert asking == {
        f"{DESK}/delete-confirm": ("agent", ["About sure?"]),
        f"{DESK}/admin": ("agent", ["About ack?"]),
        f"{DESK}/wire": ("person", ["About checked?"]),
    }
    # What policies of the org deny is denied, whatever gates would ask before.
    await apply_policies(world.db, world.admin.actor, 'policies: [{name: no, target: "ticket.delete", effect: deny}]')
    denied = {each["action"]: each for each in (await permissions(http, world.service, session))["actions"]}
    assert (denied["ticket.delete"]["state"], denied["ticket.delete"]["asks"]) == ("denied", [])
    assert denied["ticket.delete"]["rule"].startswith("org:no")
    asked = await sent(http, world.service, f"/sessions/{session}/resolve", 201)
    told = {each["action"]: each for each in (*asked["allowed_actions"], *asked["denied_actions"])}
    assert {action: (each["state"], each["rule"]) for action, each in told.items()} == {
        action: (each["state"], each["rule"]) for action, each in denied.items()
    }


@pytest.mark.proves("D.387")
async def test_what_is_out_of_tries_or_over_its_limit_is_denied_and_not_asked(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world, desk(gates=[ONBOARDING, ADMIN]))
    session = await opened(http, world.service, agrees=True)
    await sent(http, world.service, f"/sessions/{session}/calls", 409, tool="user.rename")
    for _ in range(3):
        await sent(http, world.service, f"/sessions/{session}/answers", gate="admin", answers={"ack": "no"})
    for _ in range(2):
        await sent(http, world.service, f"/sessions/{session}/calls", 201, **LIST)
    found = {each["action"]: each for each in (await permissions(http, world.service, session))["actions"]}
    for action, rule in (("user.rename", f"gate:{DESK}/admin"), ("ticket.list", f"atlas:{DESK}/lists")):
        assert (found[action]["state"], found[action]["whom"], found[action]["rule"]) == ("denied", None, rule)
    # A gate of the session that is shut leaves nothing to answer.
    other = await opened(http, world.service)
    for _ in range(3):
        await sent(http, world.service, f"/sessions/{other}/answers", gate="onboarding", answers={"agree": False})
    shut = await permissions(http, world.service, other)
    assert {each["state"] for each in shut["actions"]} == {"denied"}
    assert shut["asking"] == []


@pytest.mark.proves("D.387")
async def test_permissions_judge_what_gates_do_not_look_at_by_policies_alone(
    http: httpx.AsyncClient, world: World
) -> None:
    """Asking people is no act of the agent that a worker runs; elsewhere a tool of that name is one like any other."""
    await governed(world, desk(gates=[DELETE_CONFIRM]))
    skills = {**(await agents.get_agent(world.db, world.admin.actor, "deployer")).skill_config}
    change = AgentChange(skill_config={**skills, "tools": ["plane.ask", "ticket.list"]})
    await agents.update_agent(world.db, world.admin.actor, "deployer", change, None)
    rules = {}
    for kind in ("programmatic", "external"):
        made = await sent(http, world.service, "/sessions", 201, agent="deployer", kind=kind)
        found = await permissions(http, world.service, made["id"])
        rules[kind] = {each["action"]: each["rule"] for each in found["actions"]}["plane.ask"]
    assert rules["external"] == "atlas:default"
    assert not rules["programmatic"].startswith(("atlas:", "gate:")), rules


@pytest.mark.proves("D.382")
async def test_a_steward_who_names_keys_lets_no_other_act_in_a_session_that_is_open(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world, desk(steward=steward(access={"type": "authenticated", "api_keys": ["bridge*"]})))
    session = await opened(http, world.service)
    for path, body in (("answers", AGREE), ("calls", {"tool": "ticket.get"}), ("resolve", {"action": "ticket.get"})):
        refused = await sent(http, world.admin, f"/sessions/{session}/{path}", 403, **body)
        assert refused["code"] == "atlas_access_refused"
    assert (await sent(http, world.service, f"/sessions/{session}/answers", **AGREE))["passed"]


@pytest.mark.proves("D.385", "S5.24")
async def test_a_steward_limits_how_many_calls_begin_in_a_minute_and_no_key_is_lost_for_it(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 3, 15, 12, tzinfo=UTC))
    access = {"type": "public", "rate_limit": {"requests_per_minute": 2}}
    await governed(world, desk(gates=[], steward=steward(access=access)))
    one, two = await opened(http, world.service), await opened(http, world.service)
    export = {"tool": "export.one", "dispatch": True}
    for session in (one, two):
        assert (await sent(http, world.service, f"/sessions/{session}/calls", 201, **export))["next"] == "run"
    allowed = await sent(http, world.service, f"/sessions/{one}/calls", 201, tool="export.one")
    assert allowed["next"] == "begin", "asking is not counted"
    assert (await intended(http, world, allowed, 409))["code"] == "atlas_rate_limited"
    late = await sent(http, world.service, f"/sessions/{two}/calls", 409, **export, key="third")
    assert late["code"] == "atlas_rate_limited"
    await clock.advance(timedelta(minutes=1))
    assert (await intended(http, world, allowed))["next"] == "run"
    run = await sent(http, world.service, f"/sessions/{two}/calls", 201, **export, key="third")
    assert run["next"] == "run"


@pytest.mark.proves("D.385")
async def test_what_is_sent_again_asks_where_its_capability_was_locked_since(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    freeze = gate("freeze", {"type": "keyword", "patterns": ["freeze"]}, "advisory", lock_capabilities=["admin"])
    confirm = {**DELETE_CONFIRM, "trigger": {"type": "action_pre", "patterns": ["user.*"]}}
    await governed(world, desk(gates=[ADMIN, confirm, freeze]))
    session = await opened(http, world.service)
    path, answers = f"/sessions/{session}/calls", f"/sessions/{session}/answers"
    call = {"tool": "user.rename", "dispatch": True, "key": "k", "on_uncertain": "retry_with_key"}
    ack = {"gate": "admin", "answers": {"ack": "understood"}}
    await sent(http, world.service, path, 409, **call)
    for said in (ack, SURE):
        assert (await sent(http, world.service, answers, **said))["passed"]
    run = await sent(http, world.service, path, 201, **call, sender="one")
    await sent(http, world.service, f"/sessions/{session}/resolve", 201, goal="Freeze it", action="user.rename")
    await clock.advance(timedelta(hours=1))
    closed = await sent(http, world.service, path, 409, **call, sender="two")
    assert [each["gate"] for each in closed["questions"]] == ["admin"], "the other gate was passed for this call"
    assert (await sent(http, world.service, answers, **ack))["passed"]
    again = await sent(http, world.service, path, 201, **call, sender="two")
    assert (again["id"], again["attempt"], again["next"]) == (run["id"], 2, "run")
    # Nothing is left over that another call could pass by.
    other = await sent(http, world.service, path, 409, **{**call, "key": "l"})
    assert [each["gate"] for each in other["questions"]] == ["delete-confirm"]
