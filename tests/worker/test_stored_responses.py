"""What a step keeps of the model's response: the arguments of a call that is sent with it are in the row of the call alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest

from cortex_plane.agents.model.completions import (
    AssistantTurn,
    CallRequest,
    ModelRequest,
    ModelUsage,
    Response,
    TextChunk,
)
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.tools.app import App
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import Died, call, died, ended, make_agent, submit, turn, working

CALLS = [call("act", n=1), call("look", at="door"), call("act", n=2), call("nothing", x=3)]
ARGUMENTS = [{"n": 1}, {"at": "door"}, {"n": 2}, {"x": 3}]
IN_ITS_ROW = "in its row"


class RecordedModel:
    """The scripted model, with the calls that each request showed it."""

    def __init__(self) -> None:
        self.arguments: list[list[Any]] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        turns = [item for item in request.turns if isinstance(item, AssistantTurn)]
        self.arguments.append([made.arguments for item in turns for made in item.calls])
        async for piece in ScriptedModel().stream(request):
            yield piece


def app_that(*ends: type[BaseException] | None) -> App:
    """Its effects end in this order, the later ones well."""
    app, left = App("tests"), list(ends)

    @app.tool(read_only=True)
    async def look(at: str) -> str:
        return at

    @app.tool(on_uncertain="retry_with_key")
    async def act(n: int) -> int:
        if left and (end := left.pop(0)) is not None:
            raise end
        return n

    return app


async def stored_arguments(admin: asyncpg.Connection, job: UUID) -> list[Any]:
    response = orjson.loads(await admin.fetchval("select response from step where job_id = $1 and step_index = 0", job))
    return [made.get("arguments", IN_ITS_ROW) for made in response["calls"]]


async def row_arguments(admin: asyncpg.Connection, job: UUID) -> list[Any]:
    rows = await admin.fetch("select arguments from tool_call where job_id = $1 order by position", job)
    return [orjson.loads(row["arguments"]) for row in rows]


@pytest.mark.parametrize("dies_in", [None, 1, 2])
@pytest.mark.parametrize("is_read_first", [False, True])
async def test_the_model_is_shown_arguments_that_only_rows_have(
    world: World, admin: asyncpg.Connection, dies_in: int | None, is_read_first: bool
) -> None:
    order = [1, 0, 2, 3] if is_read_first else [0, 1, 2, 3]
    script = [turn(*(CALLS[position] for position in order)), turn(text="done")]
    job = await submit(world, await make_agent(world, script))
    if dies_in is not None:
        await died(world.db, app_that(*[None] * (dies_in - 1), Died))
    model = RecordedModel()
    async with working(world.db, app_that(), backends=Backends({"scripted": model})):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    expected = [ARGUMENTS[position] for position in order]
    assert model.arguments[-1] == expected
    assert await row_arguments(admin, job) == expected
    # Only the first call is sent with the response; those after it get their rows later.
    assert await stored_arguments(admin, job) == ([] if is_read_first else [IN_ITS_ROW]) + expected[not is_read_first :]


async def test_a_response_whose_calls_were_not_sent_keeps_their_arguments(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policies change between verdict and write: the response is written without the row of its call."""
    stored: list[Any] = []
    authorize = CallAuthorizer.authorize

    async def overtaken(self: CallAuthorizer, calls: Any) -> None:
        await authorize(self, calls)
        if not stored:
            stored.append(None)
            await apply_policies(world.db, world.admin.actor, "policies: [{name: new, target: '*', effect: allow}]")
        elif stored == [None]:
            stored[:] = [await stored_arguments(admin, job), await row_arguments(admin, job)]

    monkeypatch.setattr(CallAuthorizer, "authorize", overtaken)
    job = await submit(world, await make_agent(world, [turn(CALLS[0]), turn(text="done")]))
    model = RecordedModel()
    async with working(world.db, app_that(), backends=Backends({"scripted": model})):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    assert stored == [[{"n": 1}], []]
    assert model.arguments[-1] == [{"n": 1}]
    assert await row_arguments(admin, job) == [{"n": 1}]


async def test_arguments_too_deep_for_the_response_fail_the_job_at_once(
    world: World, admin: asyncpg.Connection
) -> None:
    """They would fit a row of their own; the response, three levels above them, is written with another call."""
    deep: Any = "x"
    for _ in range(62):
        deep = [deep]
    app = app_that()

    @app.tool(on_uncertain="retry_with_key")
    async def nest(value: Any) -> str:
        return "nested"

    class DeepModel:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            calls = (
                CallRequest(id="1", name="act", arguments={"n": 1}),
                CallRequest(id="2", name="nest", arguments={"value": deep}),
            )
            yield Response(text=None, calls=calls, usage=ModelUsage(prompt_tokens=1, completion_tokens=1))

    job = await submit(world, await make_agent(world, [], model="deep"))
    async with working(world.db, app, backends=Backends({"deep": DeepModel()})):
        end = await ended(world, job)
    assert end.status is JobStatus.FAILED
    assert "The model's response cannot be stored" in (end.error_message or "")
    assert end.retry_count == 0
    assert await row_arguments(admin, job) == []
