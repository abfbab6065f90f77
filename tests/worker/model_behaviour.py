"""What every model backend must do, whatever it speaks: over a real worker and a real database. A backend's own tests bring a
stage and inherit the suite:

class TestAnthropic(ModelSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[ModelStage]: ...
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.jobs.model.jobs import Cancellation, Job, JobStatus
from cortex_plane.jobs.model.usage import Grouping
from cortex_plane.jobs.verbs import jobs, steering, workers
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.verbs import events
from cortex_plane.worker import model_calls
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures import workers as planes
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.workers import call, make_agent, moves, steps_of, submit, turn, whole, working

# However busy the machine is.
ended = functools.partial(planes.ended, seconds=90)
until = functools.partial(planes.until, seconds=90)

WORDS = "First this is said, then that is said, and then it is over."


@dataclass(frozen=True, kw_only=True)
class Mood:
    """What the provider does to the next request alone."""

    status: int | None = None
    retry_after: float | None = None
    hold: asyncio.Event | None = None
    """It stops after its first words until this is set."""
    cut: bool = False
    """And then the connection is lost."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    prompt_tokens: int
    completion_tokens: int


class ModelStage(Protocol):
    model: str
    backends: Backends

    @property
    def requests(self) -> int:
        """How many came so far."""
        ...

    def teach(self, turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Let the model say these turns; returns what the agent's script must say for that."""
        ...

    def mood(self, mood: Mood) -> None: ...

    def results(self, request: int) -> list[str]:
        """What the model was told of its calls, with a request."""
        ...

    def gone(self) -> bool:
        """Whether nobody listens to it any more."""
        ...

    def counts(self, answers: int) -> Counted | None:
        """What the provider counted for so many answers; None where it must be believed."""
        ...


class Noted:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.app = App("tests")

        @self.app.tool(on_uncertain="retry_with_key")
        async def note(text: str) -> dict[str, str]:
            """Write something down."""
            self.notes.append(text)
            return {"noted": text}


async def told(world: World, job: UUID) -> list[Event]:
    return (await events.of_job(world.db, world.admin.actor, job, 0, 1000)).events


async def told_a_chunk(world: World, job: UUID) -> None:
    async with asyncio.timeout(90):
        while not any(event.type == "text_chunk" for event in await told(world, job)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class ModelSuite:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_calls, "FLUSH_SECONDS", 0.01)
        monkeypatch.setattr(model_calls, "FORGET_SECONDS", (0.02,) * 200)

    async def _submitted(self, world: World, stage: ModelStage, *turns: dict[str, Any], **limits: Any) -> UUID:
        limits = {"retry_base_seconds": 0.001, "retry_cap_seconds": 0.01, **limits}
        agent = await make_agent(world, stage.teach(turns), model=stage.model, limits=limits)
        return await submit(world, agent)

    async def _ran(self, world: World, stage: ModelStage, *turns: dict[str, Any]) -> tuple[Job, Noted]:
        noted = Noted()
        id = await self._submitted(world, stage, *turns)
        async with working(world.db, noted.app, backends=stage.backends, adoption_seconds=10.0):
            return await ended(world, id), noted

    @pytest.mark.proves("D.210")
    async def test_text_is_the_answer(self, world: World, stage: ModelStage) -> None:
        job, _ = await self._ran(world, stage, turn(text=WORDS))
        assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": WORDS})
        assert [step.text for step in await steps_of(world, job.id)] == [WORDS]

    @pytest.mark.proves("D.210")
    async def test_a_call_goes_to_its_tool_and_its_result_back(self, world: World, stage: ModelStage) -> None:
        job, noted = await self._ran(world, stage, turn(call("note", text="a"), text="I note."), turn(text="Noted."))
        assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": "Noted."})
        assert noted.notes == ["a"]
        assert stage.results(1) == ['{"noted":"a"}']
        assert await whole(world)

    @pytest.mark.proves("D.210")
    async def test_several_calls_of_one_answer_are_made_in_order(self, world: World, stage: ModelStage) -> None:
        said = turn(call("note", text="a"), call("note", text="b"), call("note", text="c"))
        job, noted = await self._ran(world, stage, said, turn(call("note", text="d")), turn(text="Noted."))
        assert job.result == {"text": "Noted."}
        assert noted.notes == ["a", "b", "c", "d"]
        assert stage.results(2) == [f'{{"noted":"{word}"}}' for word in "abcd"]

    @pytest.mark.proves("D.213")
    async def test_a_call_that_cannot_be_read_is_an_answer_to_the_model(self, world: World, stage: ModelStage) -> None:
        bad = {"tool": "note", "arguments": {}, "raw_arguments": '{"text": "a'}
        job, noted = await self._ran(world, stage, turn(bad, call("nothing"), call("note", text="b")), turn(text="Ok."))
        assert (job.result, noted.notes) == ({"text": "Ok."}, ["b"])
        (step, _) = await steps_of(world, job.id)
        assert [each.status for each in step.calls] == ["rejected", "rejected", "completed"]
        assert "error" in stage.results(1)[0]
        assert "There is no tool `nothing`" in stage.results(1)[1]

    @pytest.mark.proves("D.216")
    async def test_what_it_took_is_counted_once(
        self, world: World, stage: ModelStage, admin: asyncpg.Connection
    ) -> None:
        job, _ = await self._ran(world, stage, turn(call("note", text="a")), turn(text="Noted."))
        rows = await admin.fetch("select * from model_usage where job_id = $1 order by step_index", job.id)
        steps = await steps_of(world, job.id)
        assert [(row["step_index"], row["purpose"], row["estimated"]) for row in rows] == [
            (0, "step", False),
            (1, "step", False),
        ]
        assert [(row["prompt_tokens"], row["completion_tokens"]) for row in rows] == [
            (step.prompt_tokens, step.completion_tokens) for step in steps
        ]
        used = await steering.list_job_usage(world.db, world.admin.actor, job.id)
        assert (used.calls, used.unpriced_calls) == (2, 0)
        known = stage.counts(2)
        if known is not None:
            assert used.prompt_tokens == known.prompt_tokens
            assert used.completion_tokens == known.completion_tokens
        (by_model,) = await workers.list_usage(world.db, world.admin.actor, Grouping.MODEL, 10)
        assert (by_model.model, by_model.calls) == (stage.model, 2)

    @pytest.mark.proves("D.212")
    async def test_a_job_waits_as_long_as_the_provider_wishes_and_goes_on(
        self, world: World, stage: ModelStage, admin: asyncpg.Connection
    ) -> None:
        clock = await Clock.install(admin, datetime.now().astimezone())
        noted = Noted()
        id = await self._submitted(world, stage, turn(call("note", text="a")), turn(text="Noted."))
        stage.mood(Mood(status=429, retry_after=100))
        async with working(world.db, noted.app, backends=stage.backends, adoption_seconds=10.0):
            job = await until(world, id, JobStatus.RETRY, JobStatus.FAILED)
            (waits,) = (
                each
                for each in await jobs.history(world.db, world.admin.actor, id)
                if each.new_status is JobStatus.RETRY
            )
            assert job.next_retry_at is not None
            assert timedelta(seconds=100) <= job.next_retry_at - waits.created_at <= timedelta(seconds=110)
            assert stage.requests == 1
            await clock.advance(timedelta(seconds=111))
            job = await ended(world, id)
        assert (job.status, job.result, noted.notes) == (JobStatus.COMPLETED, {"text": "Noted."}, ["a"])
        assert await moves(world, id) == ["PENDING", "RUNNING", "RETRY", "RUNNING", "COMPLETED"]

    @pytest.mark.proves("D.212")
    async def test_an_answer_that_breaks_off_is_asked_for_again(
        self, world: World, stage: ModelStage, admin: asyncpg.Connection
    ) -> None:
        noted, cut = Noted(), asyncio.Event()
        id = await self._submitted(world, stage, turn(text=WORDS))
        stage.mood(Mood(hold=cut, cut=True))
        async with working(world.db, noted.app, backends=stage.backends, adoption_seconds=10.0):
            await told_a_chunk(world, id)
            cut.set()
            job = await ended(world, id)
        assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": WORDS})
        assert stage.requests == 2
        seen = [event.type for event in await told(world, id)]
        assert "step_restarted" in seen
        assert seen.index("step_restarted") < seen.index("completion")
        assert not await admin.fetchval("select count(*) from text_chunk where epoch = 1")
        rows = await admin.fetch("select * from model_usage where job_id = $1 order by created_at", id)
        assert [row["estimated"] for row in rows] == [True, False]
        assert rows[0]["prompt_tokens"] > 0
        assert rows[0]["completion_tokens"] > 0

    @pytest.mark.proves("D.210")
    async def test_a_cancel_does_not_wait_for_the_end_of_an_answer(
        self, world: World, stage: ModelStage, admin: asyncpg.Connection
    ) -> None:
        id = await self._submitted(world, stage, turn(text=WORDS))
        stage.mood(Mood(hold=asyncio.Event()))
        async with working(world.db, Noted().app, backends=stage.backends, adoption_seconds=10.0):
            await told_a_chunk(world, id)
            await steering.cancel(world.db, world.admin.actor, id, Cancellation(reason="enough"))
            job = await ended(world, id)
            async with asyncio.timeout(90):
                while not stage.gone():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert (job.status, job.error_message) == (JobStatus.CANCELLED, "enough")
        # What was said until then is paid for.
        assert await admin.fetchval("select count(*) from model_usage where job_id = $1 and estimated", id) == 1
