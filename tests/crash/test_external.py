"""Agents that run elsewhere, killed with SIGKILL before, in and after each request and the effect, and the API too.

Counted by the outside world's own log: nothing is repeated, and nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio
from benchmarks.world import World as Outside

from cortex_plane.approvals.model.approvals import (
    ApprovalDecision,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    EffectAnswer,
)
from cortex_plane.approvals.verbs import approvals, decisions, settlements
from cortex_plane.calls.verbs import calls, deadlines
from cortex_plane.jobs.model.effects import CallStatus, Verdict
from tests.conftest import Urls
from tests.crash.elsewhere import Elsewhere, elsewhere
from tests.crash.points import apart, extents, name, without_statements_after
from tests.fixtures.clock import Clock
from tests.fixtures.external_gates import desk, gate, governed, question
from tests.fixtures.people import World

KINDS = ("retry_with_key", "probe", "ask_human", "fail")
MATRIX = [
    pytest.param(("ask_human",), True, id="ask_human"),
    pytest.param(("retry_with_key", "probe", "fail"), False, id="others-short"),
    pytest.param(("retry_with_key", "probe", "fail"), True, id="others-whole", marks=pytest.mark.soak),
]
"""Every point for one kind; for the others those at which it matters how they are settled."""
APPROVED = [
    pytest.param("ask_human", False, id="ask_human-short"),
    *(pytest.param(kind, True, id=f"{kind}-whole", marks=pytest.mark.soak) for kind in KINDS),
]
"""Approval changes how a call begins, and not how it is settled: one kind tells, and `make soak` runs them all."""


@pytest.fixture(scope="module")
def machine(outside: Outside) -> Iterator[Elsewhere]:
    with elsewhere(outside) as running:
        yield running


class Stand:
    """One plane, one agent elsewhere, one outside world."""

    def __init__(self, machine: Elsewhere, world: World, urls: Urls, clock: Clock) -> None:
        self.machine, self.world, self.urls, self.clock = machine, world, urls, clock
        self.url = ""
        self.name = self.key = ""
        self.answers: dict[str, dict[str, Any]] | None = None
        """What it answers to gates."""

    async def serve(self, at: str | None = None, log: Path | None = None) -> None:
        told = await self.machine.do("api", database=self.urls.app, at=at, log=str(log) if log else None)
        self.url = f"http://127.0.0.1:{told['port']}"

    def begin(self) -> None:
        self.name = self.key = f"act-{uuid4().hex}"

    async def run(self, kind: str, at: str | None = None, log: Path | None = None, wait: float = 0) -> dict[str, Any]:
        return await self.machine.do(
            "agent", url=self.url, secret=self.world.service.secret, outside=self.machine.outside.url, kind=kind,
            key=self.key, name=self.name, at=at, log=str(log) if log else None, wait=wait, answers=self.answers,
        )  # fmt: skip

    async def acts(self) -> int:
        return await self.machine.outside.count(self.name)

    async def time_goes_by(self) -> None:
        """Long enough for every attempt to be over; a scheduler looks, and people answer by what they see outside."""
        await self.clock.advance(timedelta(hours=1))
        await deadlines.tick(self.world.db, uuid4(), "scheduler")
        for card in await self.cards():
            if card.kind is ApprovalKind.UNCERTAIN_EFFECT:
                verdict = Verdict.HAPPENED if await self.acts() else Verdict.DID_NOT_HAPPEN
                await settlements.answer(
                    self.world.db, self.world.admin.actor, card.id, EffectAnswer(verdict=verdict), Channel.API
                )

    async def approve(self) -> None:
        for card in await self.cards():
            if card.kind is ApprovalKind.CALL:
                decision = ApprovalDecision(decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash)
                await decisions.decide(self.world.db, self.world.admin.actor, card.id, decision, Channel.API)

    async def cards(self) -> list[Any]:
        page = await approvals.list_approvals(
            self.world.db, self.world.admin.actor, None, 50, status=ApprovalStatus.PENDING
        )
        return page.items

    async def status(self) -> CallStatus | None:
        page = await calls.list_calls(self.world.db, self.world.admin.actor, None, 100)
        return next((call.status for call in page.items if call.key == self.key), None)


@pytest_asyncio.fixture
async def stand(machine: Elsewhere, world: World, urls: Urls, admin: asyncpg.Connection) -> AsyncIterator[Stand]:
    made = Stand(machine, world, urls, await Clock.install(admin, datetime.now(UTC)))
    await made.serve()
    yield made
    await machine.do("end")


@pytest_asyncio.fixture
async def asking(machine: Elsewhere, strict: World, urls: Urls, admin: asyncpg.Connection) -> AsyncIterator[Stand]:
    """The same where everything needs approval."""
    made = Stand(machine, strict, urls, await Clock.install(admin, datetime.now(UTC)))
    await made.serve()
    yield made
    await machine.do("end")


def read(log: Path) -> list[str]:
    return log.read_text().split()


async def points(stand: Stand, kind: str, log: Path) -> list[str]:
    stand.begin()
    told = await stand.run(kind, log=log)
    assert "returned" in told, told
    return read(log)


def around_the_act(passed: Sequence[str]) -> Sequence[str]:
    """From the answer that lets an agent act to the answer to what it tells of it."""
    begins, ends = passed.index("act:before#1"), passed.index("act:after#1")
    assert name(passed[begins - 1]) == name(passed[ends + 2]) == "http"
    return passed[begins - 1 : ends + 3]


async def finished(stand: Stand, kind: str, at: str) -> None:
    """Run again until it ends, as whatever started it would; then count."""
    for _ in range(4):
        told = await stand.run(kind)
        if "returned" in told or told.get("raised") == "call_failed":
            break
        await stand.time_goes_by()
    acts = await stand.acts()
    if kind == "fail" and told.get("raised") == "call_failed":
        assert acts <= 1, f"{at}: repeated"
        assert await stand.status() is CallStatus.FAILED
        return
    assert "returned" in told, (at, told)
    assert acts == 1, f"{at}: {'lost' if acts == 0 else 'repeated'}"
    assert await stand.status() is CallStatus.COMPLETED


@pytest.mark.proves("D.282")
@pytest.mark.parametrize(("kinds", "whole"), MATRIX)
async def test_the_agent_dies_anywhere(stand: Stand, kinds: Sequence[str], whole: bool, tmp_path: Path) -> None:
    for kind in kinds:
        passed = await points(stand, kind, tmp_path / kind)
        assert {"http:before#1", "http:after#3", "act:before#1", "act:after#1"} <= set(passed)
        for at in passed if whole else apart(around_the_act(passed), passed):
            stand.begin()
            told = await stand.run(kind, at=at)
            assert told["status"] == -9, (kind, at, told)
            assert await stand.acts() == int(passed.index(at) >= passed.index("act:after#1"))
            await stand.time_goes_by()
            await finished(stand, kind, at)


@pytest.mark.proves("D.282")
@pytest.mark.parametrize(("kind", "whole"), APPROVED)
async def test_the_agent_dies_with_what_a_person_approved(
    asking: Stand, kind: str, whole: bool, tmp_path: Path
) -> None:
    asking.begin()
    assert (await asking.run(kind))["raised"] == "approval_pending"
    await asking.approve()
    log = tmp_path / "points"
    assert "returned" in await asking.run(kind, log=log)
    passed = read(log)
    for at in passed if whole else apart(passed, passed):
        asking.begin()
        assert (await asking.run(kind))["raised"] == "approval_pending"
        await asking.approve()
        assert (await asking.run(kind, at=at))["status"] == -9
        await asking.time_goes_by()
        await finished(asking, kind, at)


@pytest.mark.proves("D.282")
@extents
async def test_the_api_dies_anywhere(stand: Stand, whole: bool, tmp_path: Path) -> None:
    log = tmp_path / "points"
    await stand.serve(log=log)
    stand.begin()
    assert "returned" in await stand.run("ask_human")
    passed = [point for point in read(log) if not point.startswith("authenticate")]
    assert {"authorize_call:before#1", "authorize_call:after#1", "settle_call:after#1"} <= set(passed)
    begun = passed[passed.index("call_context:before#1") :]
    for at in begun if whole else without_statements_after(begun):
        await stand.serve(at=at)
        stand.begin()
        told = await stand.run("ask_human", wait=30)
        assert (told["status"], "returned" in told) == (0, True), (at, told)
        assert await stand.acts() == 1, at
        assert await stand.status() is CallStatus.COMPLETED
    assert await stand.cards() == []


GATED = [
    gate("agree", {"type": "session_start"}, questions=[question("yes", "boolean")]),
    gate("sure", {"type": "action_pre", "patterns": ["world.*"]}, questions=[question("ack", "acknowledgment")]),
]
"""One question for the session, and one for each call."""


@pytest_asyncio.fixture
async def gated(stand: Stand) -> Stand:
    """The same where gates ask; the agent knows what to answer."""
    policies = [
        {"policy_id": "act", "type": "allow", "actions": ["world.*"]},
        {"policy_id": "few", "type": "budget", "actions": ["world.*"], "max_calls": 1},
    ]
    await governed(stand.world, desk(gates=GATED, policies=policies))
    stand.answers = {"agree": {"yes": True}, "sure": {"ack": "understood"}}
    return stand


async def _trace(admin: asyncpg.Connection, name: str) -> int:
    """How often a fact of the call's gate is on the chain of the newest session."""
    found: int = await admin.fetchval(
        "select count(*) from audit_entry e where e.action = $1"
        " and convert_from(e.body, 'utf8')::jsonb #>> '{data,checkpoint_id}' = 'sure'"
        " and e.session_id = (select s.id from session s order by s.created_at desc, s.id desc limit 1)",
        name,
    )
    return found


@pytest.mark.proves("D.394")
@pytest.mark.parametrize(
    "at_points", [r"(commit|\w+_call):after", pytest.param(r".", marks=pytest.mark.soak)], ids=["writes", "all"]
)
async def test_the_api_dies_anywhere_while_gates_are_passed(
    gated: Stand, admin: asyncpg.Connection, tmp_path: Path, at_points: str
) -> None:
    """An answer that was accepted stays accepted, a pass is for one act, and the budget of one is used up once."""
    log = tmp_path / "points"
    await gated.serve(log=log)
    gated.begin()
    assert "returned" in await gated.run("ask_human")
    passed = [point for point in read(log) if not point.startswith("authenticate")]
    begins = passed.index("call_context:before#1")
    killed = [point for point in passed[begins:] if re.match(at_points, point)]
    assert {"authorize_call:after#1", "settle_call:after#1"} <= set(killed)
    # The answers to both gates, and the questions before them, are transactions.
    first_call = killed.index("authorize_call:after#1")
    assert len([point for point in killed[:first_call] if point.startswith("commit:after#")]) >= 4, killed
    for at in killed:
        await gated.serve(at=at)
        gated.begin()
        told = await gated.run("ask_human", wait=30)
        assert (told["status"], "returned" in told) == (0, True), (at, told)
        assert await gated.acts() == 1, at
        assert await gated.status() is CallStatus.COMPLETED
        assert await _trace(admin, "checkpoint_passed") == 1, at
    assert await gated.cards() == []


@pytest.mark.proves("D.394")
@extents
async def test_the_agent_dies_anywhere_while_gates_are_passed(gated: Stand, whole: bool, tmp_path: Path) -> None:
    passed = await points(gated, "ask_human", tmp_path / "points")
    for at in passed if whole else apart(passed, passed):
        gated.begin()
        assert (await gated.run("ask_human", at=at))["status"] == -9, at
        assert await gated.acts() == int(passed.index(at) >= passed.index("act:after#1"))
        await gated.time_goes_by()
        await finished(gated, "ask_human", at)
