"""What a job is resumed from: written with every step, never trusted blindly, never repaired."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest
from jsonschema_rs import validator_for
from structlog.testing import capture_logs

from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.jobs.model.checkpoints import MAX_BYTES, WARN_BYTES, CorruptionType, check_seal, mac_of, schema
from cortex_plane.jobs.model.jobs import Hold, Job, JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from cortex_plane.worker.worker import JobRunner
from tests.fixtures.people import World
from tests.fixtures.workers import (
    FAST,
    KEY,
    Died,
    Recording,
    actions,
    call,
    chains_whole,
    died,
    ended,
    job_of,
    make_agent,
    moves,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)


def pausing(world: World, instructions: str | None = None) -> App:
    """Its tool pauses the job that calls it, the first time."""
    app = App("tests", instructions=instructions)

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> int:
        if ctx.step == 0:
            await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        return ctx.step

    return app


async def paused(world: World, count: int = 1, **skills: Any) -> list[UUID]:
    """Jobs that stand after their first step."""
    limits = {"max_concurrent_jobs": 50}
    agent = await make_agent(world, [turn(call("look")), turn(call("look"))], limits=limits, **skills)
    ids = [await submit(world, agent) for _ in range(count)]
    async with working(world.db, pausing(world)):
        for id in ids:
            await until(world, id, JobStatus.PAUSED)
    return ids


async def resume(world: World, *ids: UUID) -> None:
    for id in ids:
        await steering.resume(world.db, world.admin.actor, id, Resumption())


# Corruption ----------------------------------------------------------------------------------------------------------

C = CorruptionType
EDITS: dict[str, tuple[str, CorruptionType]] = {
    "its id": ("""jsonb_set(checkpoint, '{checkpoint_id}', to_jsonb(gen_random_uuid()))""", C.CRC_MISMATCH),
    "its agent": ("""jsonb_set(checkpoint, '{agent_id}', to_jsonb(gen_random_uuid()))""", C.CRC_MISMATCH),
    "its time": ("""jsonb_set(checkpoint, '{created_at}', '"2020-01-01T00:00:00Z"')""", C.CRC_MISMATCH),
    "its step": ("""jsonb_set(checkpoint, '{step_index}', '7')""", C.CRC_MISMATCH),
    "its step's name": ("""jsonb_set(checkpoint, '{step_id}', '"other"')""", C.CRC_MISMATCH),
    "its status": ("""jsonb_set(checkpoint, '{status}', '"completed"')""", C.CRC_MISMATCH),
    "its tools": ("""jsonb_set(checkpoint, '{active_tools}', '[]')""", C.CRC_MISMATCH),
    "a tool's result": ("""jsonb_set(checkpoint, '{active_tools,0,result}', '99')""", C.CRC_MISMATCH),
    "its cursor": (
        """jsonb_set(checkpoint, '{memory_context,working_data,$plane,step}', '0')""", C.CRC_MISMATCH,
    ),
    "its memory": (
        """jsonb_set(checkpoint, '{memory_context,working_data,note}', '"x"')""", C.CRC_MISMATCH,
    ),
    "its usage": (
        """jsonb_set(checkpoint, '{memory_context,token_usage,prompt_tokens}', '0')""", C.CRC_MISMATCH,
    ),
    "its prompt": (
        """jsonb_set(checkpoint, '{memory_context,system_prompt_hash}', to_jsonb(repeat('0', 64)))""",
        C.CRC_MISMATCH,
    ),
    "its log": ("""jsonb_set(checkpoint, '{execution_log}', '[{}]')""", C.CRC_MISMATCH),
    "its crc": ("""jsonb_set(checkpoint, '{crc32}', '1')""", C.CRC_MISMATCH),
    "no crc": ("""checkpoint - 'crc32'""", C.MISSING_FIELD),
    "no memory": ("""checkpoint - 'memory_context'""", C.MISSING_FIELD),
    "a text as crc": ("""jsonb_set(checkpoint, '{crc32}', '"1"')""", C.CRC_NOT_A_NUMBER),
    "more than it had": ("""checkpoint || '{"more": 1}'""", C.CRC_MISMATCH),
    "not an object": ("""'[]'::jsonb""", C.NOT_AN_OBJECT),
}  # fmt: skip


def failed_as(job: Job, kind: CorruptionType, logs: list[Any]) -> bool:
    entry = next(line for line in logs if line.get("jobId") == str(job.id))
    return (
        job.status is JobStatus.FAILED
        and (job.error_message or "").startswith("Checkpoint corruption detected: ")
        and str(job.id) in (job.error_message or "")
        and "`cortex job resubmit`" in (job.error_message or "")
        and (entry["log_level"], entry["agentId"], entry["corruptionType"]) == ("error", str(job.agent_id), kind)
    )


@pytest.mark.proves("S1.5")
async def test_an_edit_by_hand_fails_the_job_and_is_never_repaired(world: World, admin: asyncpg.Connection) -> None:
    *edited, other_mac, no_job = await paused(world, len(EDITS) + 2)
    ids = dict(zip(EDITS, edited, strict=True))
    for name, (edit, _) in EDITS.items():
        await admin.execute(f"update job set checkpoint = {edit} where id = $1", ids[name])
    await admin.execute("update job set checkpoint_mac = sha256(checkpoint_mac) where id = $1", other_mac)
    # The checkpoint of another job, seal and all.
    await admin.execute(
        """update job j set checkpoint = o.checkpoint, checkpoint_mac = o.checkpoint_mac from job o
        where j.id = $1 and o.id = $2""", no_job, other_mac,
    )  # fmt: skip
    found = await admin.fetch("select id, checkpoint, checkpoint_mac from job order by id")
    expected = {ids[name]: kind for name, (_, kind) in EDITS.items()}
    expected |= {other_mac: C.MAC_MISMATCH, no_job: C.MAC_MISMATCH}
    await resume(world, *expected)
    with capture_logs() as logs:
        async with working(world.db, pausing(world)):
            for id, kind in expected.items():
                job = await until(world, id, JobStatus.FAILED)
                assert failed_as(job, kind, logs), (kind, job.error_message, logs)
                assert (await jobs.history(world.db, world.admin.actor, id))[-1].metadata["error"] == (
                    job.error_message
                )
                assert "checkpoint_corrupt" in await actions(world, job)
                *_, error, status = (await events.of_job(world.db, world.admin.actor, id, 0)).events
                assert (error.type, error.data) == ("error", {"message": (job.error_message or "")[:500]})
                assert status.data["status"] == "FAILED"
                assert len(await steps_of(world, id)) == 1, "nothing was done after it"
    assert await admin.fetch("select id, checkpoint, checkpoint_mac from job order by id") == found
    assert await chains_whole(world)


def sealed_again(blob: dict[str, Any], job: Job, world: World) -> tuple[str, bytes]:
    """What only somebody with the master key can do: a checkpoint with every seal right."""
    plain = {name: value for name, value in blob.items() if name != "crc32"}
    blob = {**plain, "crc32": zlib.crc32(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))}
    key = JobRunner(world.db, (), KEY, FAST)._host.vault.checkpoint_key(world.org_id)
    text = orjson.dumps(blob, option=orjson.OPT_SORT_KEYS)
    return text.decode(), mac_of(text, job.id, key)


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"schema_version": 2}, C.FUTURE_VERSION, "newer than current version 1. Cannot downgrade."),
        ({"schema_version": 0}, C.INVALID_VERSION, "Invalid schema_version: 0."),
        ({"agent_id": str(UUID(int=5))}, C.AGENT_MISMATCH, "Agent ID mismatch"),
        ({"status": "excellent"}, C.INVALID_SCHEMA, "does not fit its schema"),
    ],
)
async def test_a_checkpoint_that_is_sealed_and_does_not_fit_fails_with_the_reason(
    world: World, admin: asyncpg.Connection, change: dict[str, Any], kind: CorruptionType, says: str
) -> None:
    (id,) = await paused(world)
    blob = orjson.loads(await admin.fetchval("select checkpoint::text from job where id = $1", id))
    text, mac = sealed_again({**blob, **change}, await job_of(world, id), world)
    await admin.execute("update job set checkpoint = $2, checkpoint_mac = $3 where id = $1", id, text, mac)
    await resume(world, id)
    with capture_logs() as logs:
        async with working(world.db, pausing(world)):
            job = await until(world, id, JobStatus.FAILED)
    assert failed_as(job, kind, logs)
    assert says in (job.error_message or "")


async def test_a_checkpoint_that_was_sealed_right_is_opened(world: World, admin: asyncpg.Connection) -> None:
    """The other way round: what the tests above change is what makes the difference."""
    (id,) = await paused(world)
    blob = orjson.loads(await admin.fetchval("select checkpoint::text from job where id = $1", id))
    text, mac = sealed_again(blob, await job_of(world, id), world)
    await admin.execute("update job set checkpoint = $2, checkpoint_mac = $3 where id = $1", id, text, mac)
    await resume(world, id)
    async with working(world.db, pausing(world)):
        await until(world, id, JobStatus.COMPLETED)


# The prompt ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.9")
async def test_a_changed_prompt_goes_on_by_default(world: World) -> None:
    (id,) = await paused(world)
    await resume(world, id)
    async with working(world.db, pausing(world, "Be brief.")):
        job = await until(world, id, JobStatus.COMPLETED)
    assert "prompt_changed" in await actions(world, job)


async def test_a_changed_prompt_can_wait_for_an_operator(world: World) -> None:
    (id,) = await paused(world, on_prompt_change="hold")
    await resume(world, id)
    async with working(world.db, pausing(world, "Be brief.")):
        await until(world, id, JobStatus.RUNNING)
        job = await until(world, id, JobStatus.PAUSED)
        assert (job.holds, len(await steps_of(world, id))) == ([Hold.PROMPT_CHANGED], 1)
        await resume(world, id)
        job = await until(world, id, JobStatus.COMPLETED)
    assert await moves(world, id) == [
        "PENDING", "RUNNING", "PAUSED", "RUNNING", "PAUSED", "RUNNING", "COMPLETED",
    ]  # fmt: skip
    assert (await actions(world, job)).count("prompt_changed") == 1, "asked once"


@pytest.mark.proves("S1.9")
async def test_a_changed_prompt_can_end_the_job(world: World) -> None:
    (id,) = await paused(world, on_prompt_change="fail")
    await resume(world, id)
    async with working(world.db, pausing(world, "Be brief.")):
        job = await until(world, id, JobStatus.FAILED)
    assert job.error_message == (
        f"Job {id}, step 1: The agent's prompt changed since the job began."
        " `cortex job resubmit` starts it again with the new prompt."
    )


# Every write ---------------------------------------------------------------------------------------------------------

WATCH = """
create table seen (job_id uuid, number bigint, epoch bigint, checkpoint jsonb, at bigserial);
create function watch() returns trigger language plpgsql security definer as $$
begin
  insert into seen values (new.id, new.write_seq, new.epoch, new.checkpoint);
  return null;
end $$;
create trigger watch after update of checkpoint on job for each row when (new.checkpoint is not null)
  execute function watch();
"""


def busy_app() -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def look(at: str) -> str:
        return f"saw {at}"

    @app.tool
    async def act(what: str) -> dict[str, str]:
        return {"did": what}

    @app.tool
    async def refuse() -> str:
        raise RuntimeError("nobody knows")

    return app


@pytest.mark.proves("S1.1")
async def test_every_checkpoint_that_is_written_fits_the_published_schema(
    world: World, admin: asyncpg.Connection
) -> None:
    await admin.execute(WATCH)
    script = [
        turn(call("look", at="a"), call("act", what="ü"), call("nothing"), call("look", at="b"), text="I look."),
        *[turn(call("act", what=str(n))) for n in range(25)],
        turn(call("refuse")),
    ]
    ids = []
    for slug, granularity in (("one", "per_step"), ("two", "per_tool_call"), ("three", "per_llm_response")):
        agent = await make_agent(world, script, slug=slug, checkpoint_granularity=granularity)
        ids.append(id := await submit(world, agent))
        async with working(world.db, busy_app()):
            await until(world, id, JobStatus.PAUSED)
    fits = validator_for(schema(), validate_formats=True)
    rows = await admin.fetch("select checkpoint::text from seen order by at")
    assert len(rows) > 100
    for row in rows:
        blob = orjson.loads(row["checkpoint"])
        fits.validate(blob)
        assert blob["execution_log"] == [], "it is made from the rows of the steps where it is read"
    for id in ids:
        shown = await steering.get_checkpoint(world.db, world.admin.actor, id)
        fits.validate(shown)
        check_seal(orjson.dumps(shown).decode(), None, id, None)
        assert [entry["step_index"] for entry in shown["execution_log"]] == list(range(6, 26))
        assert shown["execution_log"][0]["result_summary"] == "act: completed"
    assert await whole(world)


@pytest.mark.proves("S1.207", "S1.8")
async def test_a_large_checkpoint_is_warned_about_and_the_job_goes_on(world: World) -> None:
    """Small results stand in the checkpoint until their step is over; three hundred of them are a lot."""
    app, done = App("tests"), list[str]()

    @app.tool(read_only=True)
    async def look() -> str:
        return "x" * 2000

    @app.tool
    async def act() -> str:
        done.append("act")
        return "done"

    class Curious(ScriptedModel):
        """Makes the first call of a response three hundred times."""

        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            async for piece in super().stream(request):
                if isinstance(piece, Response) and len(piece.calls) > 1:
                    first, *others = piece.calls
                    looks = [replace(first, id=f"{first.id}-{number}") for number in range(300)]
                    yield replace(piece, calls=(*looks, *others))
                else:
                    yield piece

    id = await submit(world, await make_agent(world, [turn(call("look"), call("act"))]))
    with capture_logs() as logs:
        async with working(world.db, app, backends=Backends({"scripted": Curious()})):
            await until(world, id, JobStatus.COMPLETED)
    warnings = [line for line in logs if line["event"] == "checkpoint is large"]
    assert warnings, logs
    assert {(line["log_level"], line["job_id"]) for line in warnings} == {("warning", str(id))}
    assert all(WARN_BYTES < line["bytes"] < MAX_BYTES for line in warnings)
    assert done == ["act"]


@pytest.mark.proves("S1.6")
async def test_per_tool_call_writes_after_each_call(world: World, admin: asyncpg.Connection) -> None:
    """Looked at from inside the calls: what the one before returned is durable already."""
    app, durable = App("tests"), list[list[str]]()

    @app.tool
    async def act(what: str, ctx: ToolContext) -> str:
        blob = await steering.get_checkpoint(world.db, world.admin.actor, ctx.job_id)
        durable.append([tool["status"] for tool in blob["active_tools"]])
        return what

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> str:
        blob = await steering.get_checkpoint(world.db, world.admin.actor, ctx.job_id)
        durable.append([tool["status"] for tool in blob["active_tools"]])
        return "seen"

    script = [turn(call("look"), call("act", what="a"), call("look"), call("act", what="b"))]
    writes = {}
    for granularity in ("per_step", "per_tool_call", "per_llm_response"):
        agent = await make_agent(world, script, slug=granularity.replace("_", "-"), checkpoint_granularity=granularity)
        id = await submit(world, agent)
        async with working(world.db, app):
            await until(world, id, JobStatus.COMPLETED)
        writes[granularity] = await admin.fetchval("select write_seq from job where id = $1", id)
    done, sent, left = "completed", "running", "pending"
    each = [[left] * 4, [done, sent, left, left], [done, done, left, left], [done, done, done, sent]]
    assert durable == each * 3, "an effect and its outcome are never later; reads are written before the next effect"
    assert writes["per_tool_call"] > writes["per_step"] >= writes["per_llm_response"]


@pytest.mark.parametrize("granularity", ["per_step", "per_tool_call", "per_llm_response"])
async def test_a_death_between_two_calls_repeats_no_effect(world: World, granularity: str) -> None:
    app, done, deaths = App("tests"), list[str](), [1]

    @app.tool
    async def act(what: str) -> str:
        done.append(what)
        return what

    @app.tool(read_only=True)
    async def look() -> str:
        done.append("look")
        if deaths:
            deaths.pop()
            raise Died
        return "seen"

    agent = await make_agent(
        world, [turn(call("act", what="a"), call("look"), call("act", what="b"))],
        checkpoint_granularity=granularity,
    )  # fmt: skip
    id = await submit(world, agent)
    await died(world.db, app)
    async with working(world.db, app):
        job = await ended(world, id)
    assert (job.status, done) == (JobStatus.COMPLETED, ["a", "look", "look", "b"])


@pytest.mark.parametrize("moment", ["model", "after_model"])
async def test_the_model_is_asked_again_only_if_its_answer_was_not_recorded(world: World, moment: str) -> None:
    app, deaths = App("tests"), [1]

    @app.tool(read_only=True)
    async def look() -> str:
        if moment == "after_model" and deaths:
            deaths.pop()
            raise Died
        return "seen"

    async def die(_: int) -> None:
        if moment == "model" and deaths:
            deaths.pop()
            raise Died

    model = Recording(die)
    backends = Backends({"recording": model})
    agent = await make_agent(world, [turn(call("look"))], model="recording")
    id = await submit(world, agent)
    await died(world.db, app, backends=backends)
    async with working(world.db, app, backends=backends):
        await until(world, id, JobStatus.COMPLETED)
    assert len(model.asked) == (3 if moment == "model" else 2)
    assert len(await steps_of(world, id)) == 2
