"""Jobs over a provider's protocol: whose key is used, who stands in, what is counted, and where the money ends."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentDraft, ModelConfig, ResourceLimits
from cortex_plane.jobs.model.jobs import Job, JobDraft, JobStatus
from cortex_plane.jobs.model.usage import Grouping
from cortex_plane.jobs.verbs import jobs, steering, workers
from cortex_plane.kernel.fields import adapter
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.verbs import events
from cortex_plane.tenancy.model.access import ModelKeyDraft, Provider
from cortex_plane.tenancy.verbs import keys
from cortex_plane.worker.models import credentials as of_keys
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.models.credentials import ProviderKeys
from cortex_plane.worker.tools.app import App
from tests.fixtures import workers as planes
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.workers import KEY, actions, names_what_to_do, steps_of, turn, whole, working
from tests.providers import Answer, AnthropicServer, ToolUse, anthropic_server, call, calls, fails, says

MODEL = "anthropic:claude-sonnet-5"

# However busy the machine is.
ended = functools.partial(planes.ended, seconds=90)
until = functools.partial(planes.until, seconds=90)


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[AnthropicServer]:
    async with anthropic_server() as running:
        yield running


class Noted:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.app = App("tests")

        @self.app.tool(on_uncertain="retry_with_key")
        async def note(text: str = "nothing") -> str:
            """Write something down."""
            self.notes.append(text)
            return text


async def an_agent(world: World, slug: str = "real", limits: dict[str, Any] | None = None, **model: Any) -> str:
    config = adapter(ModelConfig).validate_python({"model": MODEL, **model})
    draft = AgentDraft(
        name=slug, slug=slug, role="Tester", team="main", model_config=config, skill_config={"app": "tests"},
        resource_limits=adapter(ResourceLimits).validate_python({"retry_base_seconds": 0.001, **(limits or {})}),
    )  # fmt: skip
    return (await agents.create_agent(world.db, world.admin.actor, draft)).slug


async def submitted(world: World, slug: str, **more: Any) -> UUID:
    draft = JobDraft(agent=slug, payload={"text": "go"}, **more)
    return (await jobs.submit(world.db, world.admin.actor, draft)).id


@asynccontextmanager
async def served(
    world: World, provider: AnthropicServer, noted: Noted | None = None, *, key: str | None = None
) -> AsyncIterator[None]:
    """A worker with the provider's key, or with another one; an empty one is none."""
    given = {"ANTHROPIC_API_KEY": provider.key if key is None else key, "ANTHROPIC_BASE_URL": provider.url}
    backends = Backends(keys=ProviderKeys(world.db, KEY, given))
    async with working(world.db, (noted or Noted()).app, backends=backends, adoption_seconds=10.0):
        yield


async def ran(
    world: World, provider: AnthropicServer, noted: Noted | None = None, *, key: str | None = None, **agent: Any
) -> Job:
    slug = await an_agent(world, **agent)
    async with served(world, provider, noted, key=key):
        return await ended(world, await submitted(world, slug))


async def data_of(world: World, job: Job, kind: str) -> list[dict[str, Any]]:
    told = (await events.of_job(world.db, world.admin.actor, job.id, 0, 1000)).events
    return [event.data for event in told if event.type == kind]


# Keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.218")
async def test_without_a_key_a_job_fails_and_says_where_to_put_one(world: World, provider: AnthropicServer) -> None:
    job = await ran(world, provider, key="")
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert "There is no key for the model `anthropic:claude-sonnet-5`." in (job.error_message or "")
    assert "ANTHROPIC_API_KEY" in (job.error_message or "")
    assert names_what_to_do(job, 0)
    assert provider.asked == []


@pytest.mark.proves("D.221")
async def test_the_orgs_own_key_goes_before_the_workers_and_ends_with_its_removal(
    world: World, other: World, provider: AnthropicServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_keys, "FRESH_SECONDS", 0.0)
    workers_key, own = provider.key, "sk-ant-of-the-org-itself-4711"
    await keys.put_model_key(world.db, world.admin.actor, Provider.ANTHROPIC, ModelKeyDraft(key=own))
    slugs = [await an_agent(each) for each in (world, other)]
    async with served(world, provider, key=workers_key):
        provider.key = own
        job = await ended(world, await submitted(world, slugs[0]))
        assert job.status is JobStatus.COMPLETED
        # Another org does not get it: its jobs use the worker's, which the provider does not take now.
        theirs = await ended(other, await submitted(other, slugs[1]))
        assert theirs.status is JobStatus.FAILED
        assert own not in (theirs.error_message or "")
        await keys.remove_model_key(world.db, world.admin.actor, Provider.ANTHROPIC)
        job = await ended(world, await submitted(world, slugs[0]))
    assert job.status is JobStatus.FAILED
    assert "the worker's ANTHROPIC_API_KEY" in (job.error_message or "")
    assert [asked.key for asked in provider.asked] == [own, workers_key, workers_key]


@pytest.mark.proves("D.221")
async def test_an_orgs_key_is_sealed_and_the_trail_says_who_set_it_and_not_what_it_is(
    world: World, admin: asyncpg.Connection
) -> None:
    own = "sk-ant-of-the-org-itself-4711"
    kept = await keys.put_model_key(world.db, world.admin.actor, Provider.ANTHROPIC, ModelKeyDraft(key=own))
    assert (kept.last_characters, kept.set_by) == ("4711", world.admin.actor.name)
    again = await keys.put_model_key(world.db, world.admin.actor, Provider.ANTHROPIC, ModelKeyDraft(key=own + "2"))
    assert (again.last_characters, again.created_at) == ("7112", kept.created_at)
    await keys.remove_model_key(world.db, world.admin.actor, Provider.ANTHROPIC)
    assert await keys.list_model_keys(world.db, world.admin.actor) == []
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    mine = [entry for entry in trail if entry.action.startswith("model_key_")]
    assert [entry.action for entry in mine] == ["model_key_set", "model_key_set", "model_key_removed"]
    assert own not in str(trail)
    await keys.put_model_key(world.db, world.admin.actor, Provider.OPENAI, ModelKeyDraft(key=own))
    sealed = await admin.fetchval("select sealed from model_key")
    assert own.encode() not in sealed
    assert await whole(world)


# The stand-in ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.218")
async def test_a_script_stands_in_where_there_is_no_key_and_says_so(
    world: World, provider: AnthropicServer, admin: asyncpg.Connection
) -> None:
    script = [turn({"tool": "note", "arguments": {"text": "a"}}, text="I note."), turn(text="Noted.")]
    noted = Noted()
    slug = await an_agent(world, script=script, stand_in="script")
    async with served(world, provider, noted, key=""):
        job = await ended(world, await submitted(world, slug))
    assert (job.status, job.result, noted.notes) == (JobStatus.COMPLETED, {"text": "Noted."}, ["a"])
    label = f"scripted (stand-in for {MODEL})"
    assert [step.model for step in await steps_of(world, job.id)] == [label, label]
    for kind in ("message", "tool_call", "completion"):
        assert {data["model"] for data in await data_of(world, job, kind)} == {label}, kind
    rows = await admin.fetch("select model, cost_micros from model_usage where job_id = $1", job.id)
    assert {(row["model"], row["cost_micros"]) for row in rows} == {(label, 0)}
    assert provider.asked == []
    # A key in the environment, and nothing else, makes it the real one; it goes on with what was said before.
    provider.by_turn(says("I am real."))
    async with served(world, provider, noted):
        job = await ended(world, await submitted(world, slug))
    assert job.result == {"text": "I am real."}
    assert [step.model for step in await steps_of(world, job.id)] == [MODEL]
    assert [data["model"] for data in await data_of(world, job, "completion")] == [MODEL]


@pytest.mark.proves("D.218")
async def test_a_stand_in_is_the_script_or_nobody(world: World) -> None:
    with pytest.raises(ValueError, match="stand_in"):
        await an_agent(world, stand_in="somebody")


# Answers of no use -----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.213")
async def test_a_refusal_without_a_word_fails_the_job_and_is_paid(
    world: World, provider: AnthropicServer, admin: asyncpg.Connection
) -> None:
    provider.say(Answer(refusal="That would be wrong."))
    job = await ran(world, provider)
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert "The model refused to answer: That would be wrong." in (job.error_message or "")
    assert names_what_to_do(job, 0)
    row = await admin.fetchrow("select * from model_usage where job_id = $1", job.id)
    assert (row["prompt_tokens"], row["completion_tokens"], row["estimated"]) == (100, 20, False)


@pytest.mark.proves("D.213")
async def test_a_refusal_with_words_is_an_answer(world: World, provider: AnthropicServer) -> None:
    provider.say(says("Only so much.", refusal="No more."))
    job = await ran(world, provider)
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": "Only so much."})
    assert [data["stop_reason"] for data in await data_of(world, job, "completion")] == ["refusal"]


@pytest.mark.proves("D.213")
async def test_a_text_that_was_cut_off_is_marked(world: World, provider: AnthropicServer) -> None:
    provider.say(says("It is half", truncated=True))
    job = await ran(world, provider)
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": "It is half", "truncated": True})
    assert [step.stop_reason for step in await steps_of(world, job.id)] == ["max_tokens"]
    assert [data["stop_reason"] for data in await data_of(world, job, "completion")] == ["max_tokens"]


@pytest.mark.proves("D.213")
async def test_no_call_of_an_answer_that_was_cut_off_is_run(world: World, provider: AnthropicServer) -> None:
    """Not even one that looks whole, or that would be fine without arguments."""
    provider.by_turn(
        calls(call("note", text="whole"), ToolUse("note", ""), truncated=True), calls(call("note", text="b"))
    )
    noted = Noted()
    job = await ran(world, provider, noted)
    assert (job.status, noted.notes) == (JobStatus.COMPLETED, ["b"])
    first = (await steps_of(world, job.id))[0]
    assert [each.status for each in first.calls] == ["rejected", "rejected"]
    assert all("max_tokens" in (each.error or "") for each in first.calls)
    assert "cut off at `max_tokens`" in str(provider.asked[1].body["messages"])


@pytest.mark.proves("D.216")
async def test_what_was_paid_is_counted_also_where_the_job_gives_up(
    world: World, provider: AnthropicServer, admin: asyncpg.Connection
) -> None:
    slug = await an_agent(world)
    long = "Said in several pieces, and then it breaks."
    provider.say(says(long, cut=True, cache_read_tokens=50), says(long, cut=True), fails(401))
    async with served(world, provider):
        job = await ended(world, await submitted(world, slug, max_retries=3))
    assert job.status is JobStatus.FAILED
    rows = await admin.fetch("select * from model_usage where job_id = $1 order by created_at", job.id)
    assert [(row["prompt_tokens"], row["cache_read_tokens"], row["estimated"]) for row in rows] == [
        (150, 50, True),
        (100, 0, True),
    ]
    assert all(row["completion_tokens"] > 1 and row["cost_micros"] > 0 for row in rows)
    assert await whole(world)


# Costs and budgets -----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.217")
async def test_a_price_that_nobody_knows_is_null(world: World, provider: AnthropicServer) -> None:
    job = await ran(world, provider, model="anthropic:of-my-own")
    used = await steering.list_job_usage(world.db, world.admin.actor, job.id)
    assert (used.calls, used.unpriced_calls, used.cost_micros) == (1, 1, None)


@pytest.mark.proves("D.219")
async def test_a_prompt_that_would_pass_the_jobs_budget_is_not_sent(world: World, provider: AnthropicServer) -> None:
    job = await ran(world, provider, limits={"token_budget": 50}, system_prompt="x" * 400)
    assert job.status is JobStatus.FAILED
    assert "its budget is 50." in (job.error_message or "")
    assert names_what_to_do(job, 0)
    assert provider.asked == []


@pytest.mark.proves("D.219")
async def test_a_jobs_cost_ends_it_before_the_call_that_would_be_too_much(
    world: World, provider: AnthropicServer
) -> None:
    """Three million tokens of prompt cost dollars; the budget is one."""
    provider.by_turn(calls(call("note", text="a"), prompt_tokens=3_000_000), calls(call("note", text="b")))
    noted = Noted()
    job = await ran(world, provider, noted, limits={"cost_budget_usd": 1.0})
    assert (job.status, noted.notes, len(provider.asked)) == (JobStatus.FAILED, ["a"], 1)
    assert "its budget is $1." in (job.error_message or "")
    assert "`cost_budget_usd`" in (job.error_message or "")
    used = await steering.list_job_usage(world.db, world.admin.actor, job.id)
    assert (used.cost_micros or 0) > 1_000_000


@pytest.mark.proves("D.219")
async def test_a_cost_that_nobody_knows_is_not_within_a_budget(world: World, provider: AnthropicServer) -> None:
    job = await ran(world, provider, limits={"cost_budget_usd": 1.0}, model="anthropic:of-my-own")
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert "The price of `anthropic:of-my-own` is not known" in (job.error_message or "")
    assert names_what_to_do(job, 0)
    assert provider.asked == []


@pytest.mark.proves("D.220")
@pytest.mark.parametrize("limits", [{"daily_token_budget": 1000}, {"daily_cost_budget_usd": 0.002}])
async def test_an_agent_that_spent_its_day_sleeps_until_the_next(
    world: World, provider: AnthropicServer, admin: asyncpg.Connection, limits: dict[str, Any]
) -> None:
    clock = await Clock.install(admin, datetime(2031, 5, 4, 22, 30, tzinfo=UTC))
    slug = await an_agent(world, limits=limits)
    other = await an_agent(world, "other", limits=limits)
    provider.say(says("Dear.", prompt_tokens=2000))
    async with served(world, provider):
        first = await ended(world, await submitted(world, slug))
        assert first.status is JobStatus.COMPLETED
        second = await submitted(world, slug)
        job = await until(world, second, JobStatus.SLEEPING, JobStatus.FAILED)
        assert job.wake_at == datetime(2031, 5, 5, tzinfo=UTC)
        (told,) = await data_of(world, job, "budget_spent")
        assert told["budget"] == next(iter(limits))
        assert "budget_spent" in await actions(world, job)
        assert len(provider.asked) == 1
        # It is the agent's budget, nobody else's.
        assert (await ended(world, await submitted(world, other))).status is JobStatus.COMPLETED
        await clock.advance(timedelta(hours=1, minutes=31))
        job = await ended(world, second)
    assert job.status is JobStatus.COMPLETED
    days = await workers.list_usage(world.db, world.admin.actor, Grouping.DAY, 10, agent=slug)
    assert [(row.key, row.calls) for row in days] == [("2031-05-05", 1), ("2031-05-04", 1)]
    assert await whole(world)


@pytest.mark.proves("D.220")
async def test_a_prompt_larger_than_any_day_fails_instead_of_sleeping_for_ever(
    world: World, provider: AnthropicServer
) -> None:
    job = await ran(world, provider, limits={"daily_token_budget": 50}, system_prompt="x" * 400)
    assert job.status is JobStatus.FAILED
    assert "more than the agent's budget of a day" in (job.error_message or "")
    assert provider.asked == []


@pytest.mark.proves("D.216")
async def test_totals_by_agent_job_and_model_agree(world: World, provider: AnthropicServer) -> None:
    slugs = [await an_agent(world, slug) for slug in ("one", "two")]
    async with served(world, provider):
        ran_jobs = [await ended(world, await submitted(world, slug)) for slug in (*slugs, slugs[0])]
    actor = world.admin.actor

    async def total(by: Grouping, **more: Any) -> dict[str | None, int]:
        found = await workers.list_usage(world.db, actor, by, 100, **more)
        return {row.agent if by is Grouping.AGENT else row.key: row.calls for row in found}

    assert await total(Grouping.AGENT) == {"one": 2, "two": 1}
    assert await total(Grouping.JOB) == {str(job.id): 1 for job in ran_jobs}
    assert await total(Grouping.JOB, agent="two") == {str(ran_jobs[1].id): 1}
    assert await total(Grouping.MODEL) == {MODEL: 3}
    assert await total(Grouping.DAY, until=ran_jobs[0].created_at) == {}
    assert sum((await total(Grouping.DAY, since=ran_jobs[0].created_at)).values()) == 3
    first, *_ = await workers.list_usage(world.db, actor, Grouping.JOB, 1)
    rest = await workers.list_usage(world.db, actor, Grouping.JOB, 10, below=first.key)
    assert sorted([first.key, *(row.key for row in rest)]) == sorted(str(job.id) for job in ran_jobs)


@pytest.mark.proves("D.210")
async def test_a_worker_that_ends_lets_go_of_its_connections(world: World, provider: AnthropicServer) -> None:
    job = await ran(world, provider)
    assert job.status is JobStatus.COMPLETED
    async with asyncio.timeout(90):
        while provider.connections:  # noqa: ASYNC110 -- the other side notices when it does
            await asyncio.sleep(0.01)
