"""Agents of each framework, killed with SIGKILL before, inside and after their tool: nothing is done twice in silence, and what cannot be
known is asked of a person. The outside world's own file counts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

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
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, Verdict
from cortex_plane.proof.verbs import audit
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.frameworks.office_server import acts_of
from tests.frameworks.victim_server import Ended, VictimServer, victim_server
from tests.frameworks.victims import VICTIMS

NOT_BEGUN = (CallStatus.ALLOWED, CallStatus.AWAITING, CallStatus.APPROVED)
SEED = int(os.environ.get("CORTEX_KILLS_SEED", "1"))
ROUNDS_OF_CHANCE = 20
ROUNDS = 10
"""So often an agent is started again."""
SOME_ASK = """
policies:
  - {name: ask, target: "*", when: "args.order.contains('ask')", effect: requires_approval}
  - {name: rest, target: "*", effect: allow}
"""
POINTS = ("ask:before", "ask:after", "act:before", "act:after", "report:before", "report:after")
SERVER_POINTS = ("act:before gateway", "act:after gateway", "act:before server", "act:after server")
"""Where the server behind the gateway kills."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    url: str
    secret: str
    folder: str
    orders: list[str]
    on_uncertain: str


@dataclass
class Play:
    """One conversation, from its first process to its last."""

    victim: str
    errand: Errand
    at: str | None
    asked: int = 0
    """Questions whether it happened."""
    approved: int = 0
    runs: list[Ended] = field(default_factory=list)
    earlier: frozenset[Any] = frozenset()
    """Calls of other plays."""

    @property
    def folder(self) -> Path:
        return Path(self.errand.folder)

    def __str__(self) -> str:
        runs = [(run.status, run.text, run.log[-1500:]) for run in self.runs]
        return f"{self.victim} at {self.at}, {self.errand.on_uncertain}: {acts_of(self.folder)}, {runs}"


class Stand:
    """One plane, and the people who decide there."""

    def __init__(self, machine: VictimServer, server: Apart, world: World, clock: Clock, folder: Path) -> None:
        self._machine, self._server, self._world, self._clock, self._folder = machine, server, world, clock, folder

    async def _calls(self) -> list[Any]:
        page = await calls.list_calls(self._world.db, self._world.admin.actor, None, 100)
        return page.items

    async def begin(self, victim: str, at: str | None, on_uncertain: str = "ask_human", *orders: str) -> Play:
        folder = self._folder / uuid4().hex
        folder.mkdir()
        if at is not None and " " in at:
            (folder / "kill.txt").write_text(at)
        secret = self._world.service.secret
        errand = Errand(
            url=self._server.url, secret=secret, folder=str(folder), orders=[*orders] or ["A-1"], on_uncertain=on_uncertain
        )  # fmt: skip
        return Play(victim, errand, at, earlier=frozenset(call.id for call in await self._calls()))

    async def run(self, play: Play, at: str | None = None, log: Path | None = None) -> Ended:
        ended = await self._machine.run(play.victim, asdict(play.errand), at=at, log=log)
        play.runs.append(ended)
        return ended

    async def decide(self, play: Play) -> None:
        """Long enough afterwards for every attempt to be over, people answer by what they see outside."""
        await self._clock.advance(timedelta(hours=1))
        await deadlines.tick(self._world.db, uuid4(), "scheduler")
        db, actor = self._world.db, self._world.admin.actor
        page = await approvals.list_approvals(db, actor, None, 50, status=ApprovalStatus.PENDING)
        for card in page.items:
            if card.kind is ApprovalKind.UNCERTAIN_EFFECT:
                play.asked += 1
                order = card.arguments["order"]
                happened = order in acts_of(play.folder)
                answer = EffectAnswer(
                    verdict=Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN,
                    result=f"{order} is paid back." if happened else None,
                )
                await settlements.answer(db, actor, card.id, answer, Channel.API)
            else:
                play.approved += 1
                decision = ApprovalDecision(decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash)
                await decisions.decide(db, actor, card.id, decision, Channel.API)

    async def finish(self, play: Play) -> str:
        """New processes go on until the end. What truly happened is judged after each."""
        for _ in range(ROUNDS):
            await self.decide(play)
            ended = await self.run(play)
            assert ended.status == 0, str(play)
            assert max(Counter(acts_of(play.folder)).values(), default=0) <= 1, f"repeated: {play}"
            if ended.text is not None:
                break
        assert ended.text is not None, str(play)
        assert sorted(acts_of(play.folder)) == sorted(play.errand.orders), f"lost: {play}"
        for order in play.errand.orders:
            assert f"{order} is paid back." in ended.text, str(play)
        is_open = [call for call in await self._calls() if call.id not in play.earlier and call.status not in SETTLED]
        if not VICTIMS[play.victim].saves:
            # The request of an id that was lost before its call began: nobody comes for it, and nothing happens.
            is_open = [call for call in is_open if call.status not in NOT_BEGUN]
        assert is_open == [], f"{is_open}: {play}"
        return ended.text

    async def verify(self) -> None:
        assert (await audit.verify(self._world.db, self._world.admin.actor)).faults == []


@pytest.fixture(scope="module")
def machine() -> Iterator[VictimServer]:
    with victim_server() as running:
        yield running


@pytest.fixture
def server(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest_asyncio.fixture
async def stand(
    machine: VictimServer, server: Apart, world: World, admin: asyncpg.Connection, tmp_path: Path
) -> AsyncIterator[Stand]:
    await apply_policies(world.db, world.admin.actor, SOME_ASK)
    stand = Stand(machine, server, world, await Clock.install(admin, datetime.now(UTC)), tmp_path)
    yield stand
    await stand.verify()


def points_of(victim: str) -> tuple[str, ...]:
    points = POINTS if VICTIMS[victim].saves else POINTS[:-1]
    if victim.startswith("gateway"):
        return (*(point for point in points if not point.startswith("act")), *SERVER_POINTS)
    return points


SHORT = [
    ("langchain", "ask:before", "ask_human", "A-ask-1"), ("langchain", "act:after", "probe"), ("langchain", "report:after", "ask_human"),
    ("langchain-sync", "ask:after", "ask_human"), ("langchain-sync", "act:after", "retry_with_key"),
    ("langchain-unsaved", "act:after", "ask_human"), ("langchain-unsaved", "act:before", "retry_with_key"),
    ("tool-node", "act:before", "probe"), ("tool-node", "report:after", "ask_human"),
    ("pydantic-ai", "act:after", "retry_with_key"), ("pydantic-ai", "report:after", "ask_human"),
    ("pydantic-ai-unsaved", "report:before", "ask_human"), ("pydantic-ai-unsaved", "act:after", "probe"),
    ("openai-agents", "act:after", "ask_human"), ("openai-agents", "act:before", "probe"),
    ("google-adk", "act:after", "retry_with_key"), ("agent-framework", "act:after", "ask_human"),
    ("hooks", "act:after", "ask_human"), ("hooks", "report:after", "ask_human"), ("hooks-unsaved", "act:before", "ask_human"),
    ("hook-command", "report:before", "ask_human"),
    ("gateway", "act:after gateway", "ask_human"), ("gateway", "act:before server", "retry_with_key"), ("gateway", "report:after", "ask_human"),
    ("gateway-without-ids", "report:before", "ask_human"), ("gateway-without-ids", "act:after server", "retry_with_key"),
]  # fmt: skip
"""Each adapter at its hardest points, and each point and policy with some adapter."""


async def play(stand: Stand, victim: str, at: str, on_uncertain: str, *orders: str) -> Play:
    play = await stand.begin(victim, at if " " in at else f"{at}#1", on_uncertain, *orders)
    first = await stand.run(play, at=None if " " in at else play.at)
    if not at.endswith("server"):
        assert first.status == -SIGKILL, str(play)
    await stand.finish(play)
    return play


@pytest.mark.proves("D.1060")
async def test_nothing_is_repeated_in_silence(stand: Stand) -> None:
    for victim, at, on_uncertain, *orders in (row for row in SHORT if row[0] in VICTIMS):
        await play(stand, victim, at, on_uncertain, *orders)
    assert VICTIMS.keys() <= {victim for victim, *_ in SHORT}


async def play_at_random(stand: Stand, victim: str, random: Random) -> Play:
    """Several calls at once, of which some wait for a person; up to three processes die."""
    orders = [f"A-{random.choice(['ask-', ''])}{number}" for number in range(random.randint(1, 3))]
    points = [point for point in points_of(victim) if " " not in point]
    play = await stand.begin(victim, "somewhere", random.choice(VICTIMS[victim].on_uncertain), *orders)
    for _ in range(random.randint(1, 3)):
        if victim.startswith("gateway") and random.random() < 0.4:
            (play.folder / "kill.txt").write_text(random.choice(SERVER_POINTS))
        ended = await stand.run(play, at=f"{random.choice(points)}#{random.randint(1, len(orders))}")
        assert ended.status in (0, -SIGKILL), str(play)
        if ended.text is not None:
            break
        if random.random() < 0.5:
            await stand.decide(play)
    (play.folder / "kill.txt").unlink(missing_ok=True)
    await stand.finish(play)
    return play


@pytest.mark.soak
@pytest.mark.proves("D.1060")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_nothing_is_repeated_in_silence_at_any_point(stand: Stand, victim: str) -> None:
    """All points and policies, then rounds by chance. Without saved answers a second death may lose what the first one's people said."""
    figures, faults = Counter[str](), []
    random = Random(f"{SEED} {victim}")

    async def judge(playing: Awaitable[Play]) -> None:
        try:
            done = await playing
            figures.update(plays=1, killed=sum(run.status == -SIGKILL for run in done.runs))
            figures.update(doubts=done.asked, approvals=done.approved)
        except AssertionError as error:
            faults.append(str(error))

    for on_uncertain in VICTIMS[victim].on_uncertain:
        for at in points_of(victim):
            await judge(play(stand, victim, at, on_uncertain))
        await judge(play(stand, victim, "ask:before", on_uncertain, "A-ask-1"))
    for _ in range(ROUNDS_OF_CHANCE if VICTIMS[victim].saves else 0):
        await judge(play_at_random(stand, victim, random))
    print(f"{victim}: {dict(figures)}")  # noqa: T201 -- the figures of the long form
    assert not faults, "\n\n".join(faults)
