"""Gates around agents that run elsewhere: whose yes passes what, and every way in which a call ends."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

import cortex_plane
from cortex_plane.approvals.model.approvals import Channel, EffectAnswer
from cortex_plane.approvals.verbs import settlements
from cortex_plane.calls.model import OutcomeDraft, OutcomeStatus
from cortex_plane.calls.verbs import deadlines, outcomes
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_gates, session_lifecycle
from cortex_plane.gates.verbs.atlas_cache import AtlasCache
from cortex_plane.jobs.model.effects import Verdict
from tests.fixtures.clock import Clock
from tests.fixtures.external_gates import (
    DESK,
    GOODBYE,
    ONBOARDING,
    WENT_WRONG,
    WIRE,
    desk,
    gate,
    governed,
    opened,
    question,
    sent,
    told,
)
from tests.fixtures.gated import state_in
from tests.fixtures.people import World, apply_policies
from tests.gates.test_external_gates import decide, intended

BOSS = gate(
    "boss", {"type": "keyword", "patterns": ["payroll"]}, audience="human", questions=[question("boss", "boolean")]
)  # fmt: skip
CALL = {"tool": "wire.send", "arguments": {"cents": 5}}
POSTED = gate("posted", {"type": "action_post", "patterns": ["wire.*"]}, questions=[question("why", "boolean")])
SOURCE = Path(cortex_plane.__file__).parent
ENDING = re.compile(r"set_session_status\([^)]*SessionStatus\.TERMINATED\)|complete_session\(|ends_session=True")
ALLOWED = "policies: [{name: rest, target: '*', effect: allow}]"


async def _fired(world: World, session: str) -> list[tuple[str, str]]:
    return [(name, data["checkpoint_id"]) for name, data in await told(world, session)]


@pytest.mark.proves("D.383")
@pytest.mark.parametrize("asks", ["ticket.list", "wire.send"])
async def test_whoever_approved_passes_the_gates_that_stood_on_their_card_and_no_others(
    http: httpx.AsyncClient, world: World, asks: str
) -> None:
    """A gate for people fires after the card was made, and a resolution asks about the same action: nobody was shown it."""
    await governed(world, desk(gates=[ONBOARDING, WIRE, BOSS]))
    session = await opened(http, world.service, agrees=True)
    call = await sent(http, world.service, f"/sessions/{session}/calls", 201, **CALL)
    about = {"action": asks, "arguments": {"cents": 7}} if asks == "wire.send" else {"action": asks}
    await sent(http, world.service, f"/sessions/{session}/resolve", 201, goal="do the payroll", **about)
    state = await state_in(world, UUID(session))
    assert {each.call for each in state.cards} == {call["id"]}, "looking shows nobody anything"
    first = await decide(world, call)
    assert first is not None
    assert "boss" not in first
    again = await intended(http, world, call)
    assert (again["status"], again["next"]) == ("awaiting", "wait"), "its gate stood on no card"
    second = await decide(world, again)
    assert second is not None
    assert "About boss?" in second
    assert (await intended(http, world, again))["next"] == "run"
    state = await state_in(world, UUID(session))
    assert (f"{DESK}/boss" in state.passed, state.people) == (True, ())


@pytest.mark.proves("D.383")
async def test_calls_join_one_request_only_where_people_are_asked_the_same(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world, desk(gates=[ONBOARDING, WIRE, BOSS]))
    session = await opened(http, world.service, agrees=True)
    path = f"/sessions/{session}/calls"
    one, same = [await sent(http, world.service, path, 201, **CALL) for _ in range(2)]
    assert one["approval_id"] == same["approval_id"]
    await sent(http, world.service, f"/sessions/{session}/resolve", 201, goal="do the payroll", action="ticket.list")
    other = await sent(http, world.service, path, 201, **CALL)
    assert other["approval_id"] != one["approval_id"], "it is asked about more"
    asked = await decide(world, other)
    assert asked is not None
    assert "About boss?" in asked
    assert (await intended(http, world, other))["next"] == "run"
    # Both that joined were shown the same, and one yes is for both.
    await decide(world, one)
    assert [(await intended(http, world, each))["next"] for each in (one, same)] == ["run", "run"]


@pytest.mark.proves("D.383")
async def test_what_did_not_happen_is_sent_again_only_by_who_saw_its_gates(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await governed(world, desk(gates=[ONBOARDING, WIRE, BOSS]))
    session = await opened(http, world.service, agrees=True)
    path = f"/sessions/{session}/calls"
    calls = [
        await sent(http, world.service, path, 201, tool="wire.send", arguments={"cents": cents}, timeout_seconds=1)
        for cents in (5, 6)
    ]  # fmt: skip
    for call in calls:
        await decide(world, call)
        assert (await intended(http, world, call))["next"] == "run"
    await clock.advance(timedelta(hours=1))
    await deadlines.tick(world.db, uuid4(), "scheduler")
    for call in calls:
        await _answer(world, http, call, Verdict.DID_NOT_HAPPEN)
    assert (await intended(http, world, calls[0]))["next"] == "run", "the very approval that it was sent with"
    await sent(http, world.service, f"/sessions/{session}/resolve", 201, goal="do the payroll", action="ticket.list")
    again = await intended(http, world, calls[1])
    assert (again["status"], again["next"]) == ("awaiting", "wait")
    asked = await decide(world, again)
    assert asked is not None
    assert "About boss?" in asked
    assert (await intended(http, world, again))["next"] == "run"


async def _answer(world: World, http: httpx.AsyncClient, call: dict[str, Any], verdict: Verdict) -> None:
    kept = (await http.get(f"/v1/calls/{call['id']}", headers=world.service.headers)).json()
    answer = EffectAnswer(verdict=verdict)
    await settlements.answer(world.db, world.admin.actor, UUID(kept["approval_id"]), answer, Channel.API)


@pytest.mark.proves("D.387")
@pytest.mark.parametrize(
    ("how", "went_wrong"), [("failed", True), ("unknown", True), ("silent", True), ("happened", False), ("fail", True)]
)
async def test_gates_look_at_every_end_of_a_call(
    http: httpx.AsyncClient,
    world: World,
    admin: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    went_wrong: bool,
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await governed(world, desk(gates=[ONBOARDING, POSTED, WENT_WRONG]))
    await apply_policies(world.db, world.admin.actor, ALLOWED)
    session = await opened(http, world.service, agrees=True)
    by_person = how in ("happened", "fail")
    run = await sent(
        http, world.service, f"/sessions/{session}/calls", 201, **CALL, dispatch=True, timeout_seconds=1,
        on_uncertain="ask_human" if by_person else "fail",
    )  # fmt: skip
    # Whatever this process knew of atlases is gone: they are loaded before anything is locked.
    monkeypatch.setattr(session_gates, "book", AtlasCache())
    if how in ("failed", "unknown"):
        await sent(http, world.service, f"/calls/{run['id']}/outcome", status=how, error="hm")
    else:
        await clock.advance(timedelta(hours=1))
        await deadlines.tick(world.db, uuid4(), "scheduler")
    if by_person:
        assert ("checkpoint_triggered", "posted") not in await _fired(world, session), "nobody knows yet"
        await _answer(world, http, run, Verdict(how))
    fired = await _fired(world, session)
    assert fired.count(("checkpoint_triggered", "posted")) == 1
    assert fired.count(("checkpoint_triggered", "went-wrong")) == int(went_wrong)
    state = await state_in(world, UUID(session))
    assert [each.gate.rsplit("/", 1)[1] for each in state.open] == ["posted"], "it asks before anything else"


@pytest.mark.proves("D.384")
async def test_what_a_gate_tells_of_a_call_it_tells_once(http: httpx.AsyncClient, world: World) -> None:
    hint = gate("hint", {"type": "action_pre", "patterns": ["wire.*"]}, "advisory", guidance={"content": "Slow."})
    await governed(world, desk(gates=[ONBOARDING, hint]))
    await apply_policies(world.db, world.admin.actor, ALLOWED)
    session = await opened(http, world.service, agrees=True)
    call = await sent(http, world.service, f"/sessions/{session}/calls", 201, **CALL)
    before = await _fired(world, session)
    assert ("checkpoint_triggered", "hint") in before
    assert (await intended(http, world, call))["next"] == "run"
    assert await _fired(world, session) == before


@pytest.mark.proves("D.332")
async def test_a_session_whose_atlas_is_not_what_was_published_is_not_opened(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await governed(world)
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Acme', 'Emca')")
    monkeypatch.setattr(session_gates, "book", AtlasCache())
    refused = await sent(http, world.service, "/sessions", 409, agent="deployer", kind="external")
    assert refused["code"] == "atlas_corrupt"
    assert await admin.fetchval("select count(*) from session") == 0, "nothing was begun"
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Emca', 'Acme')")
    session = await opened(http, world.service)
    state = await state_in(world, UUID(session))
    assert [each.gate for each in state.open] == [f"{DESK}/onboarding"], "asked in the commit that opened it"


@pytest.mark.proves("D.387")
async def test_a_session_that_a_gate_ends_fires_what_fires_at_its_end(http: httpx.AsyncClient, world: World) -> None:
    await governed(world, desk(gates=[ONBOARDING, GOODBYE]))
    session = await opened(http, world.service)
    wrong = {"gate": "onboarding", "answers": {"agree": False}}
    for _ in range(3):
        said = await sent(http, world.service, f"/sessions/{session}/answers", **wrong)
    assert said["shut"]
    ended = (await http.get(f"/v1/sessions/{session}", headers=world.service.headers)).json()
    assert ended["status"] == "TERMINATED"
    fired = await _fired(world, session)
    assert fired.count(("checkpoint_triggered", "goodbye")) == 1
    assert fired.index(("checkpoint_blocked", "onboarding")) < fired.index(("checkpoint_triggered", "goodbye"))


@pytest.mark.proves("D.387", "D.332")
@pytest.mark.parametrize("how", ["completed", "failed", "unknown", "silent"])
async def test_outcomes_count_also_where_an_atlas_cannot_be_read_and_nothing_is_sent(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await governed(world, desk(gates=[ONBOARDING, POSTED, WENT_WRONG]))
    await apply_policies(world.db, world.admin.actor, ALLOWED)
    session = await opened(http, world.service, agrees=True)
    path = f"/sessions/{session}/calls"
    call = CALL | {"dispatch": True, "timeout_seconds": 1, "on_uncertain": "fail"}
    run = await sent(http, world.service, path, 201, **call)
    allowed = await sent(http, world.service, path, 201, **CALL)
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Acme', 'Emca')")
    monkeypatch.setattr(session_gates, "book", AtlasCache())
    if how == "silent":
        await clock.advance(timedelta(hours=1))
        await deadlines.tick(world.db, uuid4(), "scheduler")
    else:
        said = {"error": "hm"} if how != "completed" else {}
        for _ in range(2):  # told twice, nothing changes
            await sent(http, world.service, f"/calls/{run['id']}/outcome", status=how, **said)
    kept = (await http.get(f"/v1/calls/{run['id']}", headers=world.service.headers)).json()
    assert kept["status"] == ("completed" if how == "completed" else "failed")
    unread = await told(world, session, "gates_unread")
    assert [data["calls"] for _, data in unread] == [["wire.send"]]
    assert "its digest is not" in unread[0][1]["reason"]
    # Whatever would be sent is refused as long as nobody can read the gates.
    assert (await sent(http, world.service, path, 409, **call))["code"] == "atlas_corrupt"
    assert (await intended(http, world, allowed, 409))["code"] == "atlas_corrupt"
    # With the row as it was, gates look at what they missed.
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Emca', 'Acme')")
    assert (await sent(http, world.service, path, 409, **call))["code"] == "gate_closed"
    fired = await _fired(world, session)
    assert fired.count(("checkpoint_triggered", "posted")) == 1
    assert fired.count(("checkpoint_triggered", "went-wrong")) == int(how != "completed")


@pytest.mark.proves("D.387", "D.332")
@pytest.mark.parametrize("how", ["complete", "fail", "terminate"])
async def test_a_session_ends_also_where_its_atlas_cannot_be_read(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await governed(world, desk(gates=[ONBOARDING, GOODBYE]))
    session = await opened(http, world.service, agrees=True)
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Acme', 'Emca')")
    monkeypatch.setattr(session_gates, "book", AtlasCache())
    for _ in range(2):
        ended = await sent(http, world.admin, f"/sessions/{session}/{how}")
        assert ended["status"] == "TERMINATED"
    assert len(await told(world, session, "gates_unread")) == 1
    assert ("checkpoint_triggered", "goodbye") not in await _fired(world, session)


@pytest.mark.proves("D.387")
async def test_an_outcome_costs_one_look_at_gates_where_there_are_some_and_none_elsewhere(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[str] = []
    call, transaction = Database.call, Database.transaction

    async def counted(db: Database, name: str, *args: Any) -> Any:
        trips.append(name)
        return await call(db, name, *args)

    def begun(db: Database, *args: Any, **more: Any) -> Any:
        trips.append("begin")
        return transaction(db, *args, **more)

    monkeypatch.setattr(Database, "call", counted)
    monkeypatch.setattr(Database, "transaction", begun)

    async def settled(status: OutcomeStatus) -> list[str]:
        run = await sent(http, world.service, f"/sessions/{session}/calls", 201, **CALL, dispatch=True)
        trips.clear()
        outcome = OutcomeDraft(status=status, error="no" if status is OutcomeStatus.FAILED else None)
        await outcomes.settle_call(world.db, world.service.actor, UUID(run["id"]), outcome)
        return list(trips)

    await apply_policies(world.db, world.admin.actor, ALLOWED)
    session = await opened(http, world.service)
    assert await settled(OutcomeStatus.COMPLETED) == ["settle_call"]
    await governed(world, desk(gates=[ONBOARDING, WENT_WRONG]))
    session = await opened(http, world.service, agrees=True)
    assert await settled(OutcomeStatus.COMPLETED) == ["settle_call"] * 2
    assert await settled(OutcomeStatus.FAILED) == ["settle_call"] * 2
    assert ("checkpoint_triggered", "went-wrong") in await _fired(world, session)


@pytest.mark.proves("S5.242")
@pytest.mark.parametrize("how", ["complete", "fail", "terminate", "shut", "idle"])
async def test_gates_of_the_end_fire_once_however_a_session_ends(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, how: str
) -> None:
    ends = [gate(f"goodbye-{n}", {"type": "session_end"}, "observational") for n in range(3)]
    cheap = {"budget": {"max_checkpoints_per_input": 1}}
    await governed(world, desk(gates=[ONBOARDING, *ends], checkpoint_config=cheap))
    session = await opened(http, world.service, agrees=how != "shut")
    if how == "idle":
        await admin.execute("update session set status = 'PAUSED' where id = $1", UUID(session))
        long_ago = "update session set paused_at = plane_now() - interval '1 hour' where id = $1"
        await admin.execute(long_ago, UUID(session))
        change = {"settings": {"end_paused_after_seconds": 60}}
        assert (await http.patch("/v1/org", headers=world.admin.headers, json=change)).status_code == 200
    for _ in range(3):
        if how == "idle":
            await session_lifecycle.end_long_paused(world.db)
        elif how == "shut":
            await sent(http, world.service, f"/sessions/{session}/answers", gate="onboarding", answers={"agree": False})
        else:
            await sent(http, world.admin, f"/sessions/{session}/{how}")
    assert (await http.get(f"/v1/sessions/{session}", headers=world.admin.headers)).json()["status"] == "TERMINATED"
    fired = await _fired(world, session)
    assert [fired.count(("checkpoint_triggered", f"goodbye-{n}")) for n in range(3)] == [1, 1, 1]


@pytest.mark.proves("S5.242")
def test_whatever_ends_a_session_evaluates_the_gates_of_its_end() -> None:
    """Also what is yet to be written, such as a scheduler that ends idle sessions: it calls `session_gates.end`."""
    ends, forgotten = set[str](), set[str]()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.unparse(function)
            if not ENDING.search(text) or function.name in ("complete_session", "fail_job", "set_session_status"):
                continue  # those two end a session for a caller, which evaluates the gates
            ends.add(function.name)
            if "session_gates.end(" not in text and "ends=True))" not in text:
                forgotten.add(f"{path.name} {function.name}")
    assert len(ends) >= 4, "the search finds what it looks for"
    assert forgotten == set()
