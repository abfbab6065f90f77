"""Killed while a real provider speaks, and between its answer and the tools: every act happened exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from signal import SIGKILL
from uuid import UUID

import pytest
import pytest_asyncio

from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.sessions.verbs import events
from tests.crash.outcomes import judged
from tests.crash.points import each
from tests.crash.stage import ACTS, Run, Stage
from tests.crash.tools import Kind
from tests.crash.workers import until
from tests.fixtures.workers import make_agent
from tests.providers import Answer, AnthropicServer, Asked, anthropic_server, call, calls, says

MODEL = "anthropic:claude-sonnet-5"


@pytest_asyncio.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AnthropicServer]:
    async with anthropic_server() as running:
        # The worker that finishes what others left lives in this process.
        for name, value in _environment(running).items():
            monkeypatch.setenv(name, value)
        yield running


def _environment(provider: AnthropicServer) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": provider.key, "ANTHROPIC_BASE_URL": provider.url}


def _answers(kind: Kind) -> list[Answer]:
    return [
        calls(call("look", at="here"), call(kind, word="a"), text="I look around here, and then I act."),
        calls(call(kind, word="b"), call(kind, word="c")),
    ]


async def _submitted(stage: Stage, kind: Kind, label: str) -> Run:
    app = stage.new_app()
    agent = await make_agent(stage.world, [], app=app, slug=app, model=MODEL)
    job = await jobs.submit(stage.world.db, stage.world.admin.actor, JobDraft(agent=agent.slug, payload={"text": "go"}))
    return stage.add(
        Run(
            label=label, kind=kind, app=app, agent=agent, job_id=job.id, session_id=job.session_id, acts=ACTS,
            steps=3,
        )
    )  # fmt: skip


POINTS = ("model:before#1", "model:after#1", "advance_job:after#1", "tool:after#2", "model:before#2", "model:after#2")


@pytest.mark.proves("D.222")
async def test_killed_between_the_model_and_the_tools(provider: AnthropicServer, stage: Stage) -> None:
    provider.by_turn(*_answers(Kind.WITH_KEY))

    async def kill(point: str) -> None:
        run = await _submitted(stage, Kind.WITH_KEY, point)
        victim = await stage.worker(run.app, at=point, environment=_environment(provider))
        assert await victim.wait() == -SIGKILL, victim.said()
        await stage.let_time_pass(victim, run)
        await stage.rescued(run)

    await each(POINTS, kill)
    await _require_clean(stage)


@pytest.mark.proves("D.222")
async def test_killed_in_the_middle_of_an_answer(provider: AnthropicServer, stage: Stage) -> None:
    """Nothing of half an answer is kept: whoever takes over says so to those who watch, and asks again."""
    never = asyncio.Event()
    first, *rest = _answers(Kind.PROBED)
    held = Answer(text=first.text, uses=first.uses, hold=never)

    def answer(asked: Asked) -> Answer:
        if len(provider.asked) == 1:
            return held
        return [first, *rest, says("done")][asked.turn]

    provider.answer = answer
    run = await _submitted(stage, Kind.PROBED, "in the middle of an answer")
    victim = await stage.worker(run.app, environment=_environment(provider))
    await stage.until("select 1 from text_chunk where job_id = $1", run.job_id)
    assert await victim.end(SIGKILL) == -SIGKILL
    await until(lambda: provider.lost == 1)
    await stage.let_time_pass(victim, run)
    await stage.rescued(run)
    await _require_clean(stage)
    told = await _told(stage, run.job_id)
    assert told.index("step_restarted") < told.index("tool_call")
    assert len(provider.asked) == 4


async def _require_clean(stage: Stage) -> None:
    """Chunks take numbers of events and are gone with their step, so here a head counts more than there are."""
    table = await judged(stage)
    table.faults = [fault for fault in table.faults if fault != "a head that does not count its events"]
    assert table.clean, f"\n{table}"


async def _told(stage: Stage, job_id: UUID) -> list[str]:
    page = await events.of_job(stage.world.db, stage.world.admin.actor, job_id, 0, 1000)
    return [event.type for event in page.events]
