"""Triggers and validators that an app registers: asked within their time, and what cannot be asked opens nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cortex_plane.agents.model.tools import InvalidApp
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.worker import gate_code
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures.gated import Desk, Listening, atlas, before, gate, get, ledger, question, run, say, traced, traces
from tests.fixtures.people import World
from tests.fixtures.workers import actions, call, turn

MOOD = {"type": "custom", "trigger_id": "mood", "params": {"threshold": -0.5}}
BLOCKS = gate("upset", MOOD, questions=[question("calm", text="Will you stay calm?")])
ADVISES = gate("upset", MOOD, mode="advisory", guidance={"format": "text", "content": "Apologise."})
CHECKED = gate(
    "named", before("ticket.get"),
    questions=[question("name", "text", "Your name?", validation={"custom_validator": "known-name"})],
)  # fmt: skip


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_code, "SECONDS", 0.05)


@pytest.mark.proves("D.374", "S5.7")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_trigger_sees_what_came_in_and_what_the_atlas_says(world: World, is_async: bool) -> None:
    desk, seen = Desk(), list[tuple[str, dict[str, Any]]]()

    def mood(text: str, params: dict[str, Any]) -> bool:
        seen.append((text, params))
        return "terrible" in text

    async def mood_later(text: str, params: dict[str, Any]) -> bool:
        return mood(text, params)

    desk.app.trigger("mood")(mood_later if is_async else mood)
    angry = await run(
        world, desk, atlas(BLOCKS), turn(get()), turn(say("upset", calm=True)), turn(get()),
        payload={"text": "This is terrible"},
    )  # fmt: skip
    assert (angry.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert seen == [("This is terrible", {"threshold": -0.5})]
    assert (await traces(world, angry))[0][1]["trigger_data"] == {"trigger_id": "mood"}
    kind = await run(
        world, desk, atlas(BLOCKS), turn(get("2")), payload={"text": "Thank you"}, slug="kind"
    )  # fmt: skip
    assert (kind.status, desk.done) == (JobStatus.COMPLETED, ["get 1", "get 2"])
    assert await traced(world, kind) == []


async def _hangs(_text: str, _params: dict[str, Any]) -> bool:
    await asyncio.Event().wait()
    return False


def _blocks_its_thread(_text: str, _params: dict[str, Any]) -> bool:
    threading.Event().wait(1)
    return False


def _raises(_text: str, _params: dict[str, Any]) -> bool:
    raise SystemExit(1)


def _says_nothing(_text: str, _params: dict[str, Any]) -> Any:
    return None


@pytest.mark.proves("D.375", "S5.29")
@pytest.mark.parametrize("function", [None, _hangs, _blocks_its_thread, _raises, _says_nothing])
async def test_a_trigger_that_cannot_be_asked_fires_what_blocks_and_skips_what_advises(
    world: World, hurried: None, function: Any
) -> None:
    desk, model = Desk(), Listening()
    if function is not None:
        desk.app.trigger("mood")(function)
    blocked = await run(world, desk, atlas(BLOCKS), turn(get()), turn(get()), turn(get()))
    assert (blocked.status, desk.done) == (JobStatus.FAILED, [])
    assert (await traced(world, blocked))[0] == "triggered upset"
    assert "trigger_failed" in await actions(world, blocked)
    advised = await run(
        world, desk, atlas(ADVISES, version="2.0.0"), turn(get()), slug="advised",
        backends=Backends({"scripted": model}),
    )  # fmt: skip
    assert (advised.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    ((kind, told),) = await traces(world, advised)
    assert kind == "skipped"
    assert "`mood`" in told["reason"]
    assert "Apologise" not in (model.asked[-1].system_prompt or "")


@pytest.mark.proves("D.375", "D.342")
@pytest.mark.parametrize("function", [None, _raises])
async def test_what_a_gate_forbids_whose_trigger_cannot_be_asked_is_forbidden(world: World, function: Any) -> None:
    desk = Desk()
    if function is not None:
        desk.app.trigger("mood")(function)
    denies = {**ADVISES, "deny_actions": ["ticket.*"]}
    job = await run(world, desk, atlas(denies), turn(get()), turn(call("mail.send", to="ada")))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["mail ada"])
    assert await traced(world, job) == ["skipped upset", "blocked upset"]


@pytest.mark.proves("D.374")
async def test_a_validator_says_what_is_wrong_with_an_answer(world: World) -> None:
    desk = Desk()

    @desk.app.validator("known-name")
    def known(answer: str) -> str | None:
        return None if answer == "Ada" else f"nobody is called {answer}"

    job = await run(
        world, desk, atlas(CHECKED), turn(get()), turn(say("named", name="Eve")), turn(say("named", name="Ada")),
        turn(get()),
    )  # fmt: skip
    assert desk.done == ["get 1"]
    told = [made.result for made in await ledger(world, job.id) if made.tool_name == "plane.answer"]
    assert [each["passed"] for each in told] == [False, True]
    assert told[0]["faults"] == {"name": "nobody is called Eve"}


@pytest.mark.proves("D.375", "S5.29")
@pytest.mark.parametrize("how", ["missing", "hangs", "raises", "says yes"])
async def test_an_answer_that_nobody_could_look_at_is_not_accepted(world: World, hurried: None, how: str) -> None:
    desk = Desk()

    async def looked(_answer: str) -> Any:
        if how == "hangs":
            await asyncio.Event().wait()
        if how == "raises":
            raise ValueError("no")
        return True

    if how != "missing":
        desk.app.validator("known-name")(looked)
    job = await run(world, desk, atlas(CHECKED), turn(get()), turn(say("named", name="Ada")), turn(get()))
    assert desk.done == []
    told = [made.result for made in await ledger(world, job.id) if made.tool_name == "plane.answer"]
    assert "could not look at it" in str(told[0]["faults"])


@pytest.mark.proves("S5.237", "S5.10")
async def test_the_time_budget_counts_the_evaluation_itself(world: World) -> None:
    desk, words = Desk(), {"type": "keyword", "patterns": ["refund"]}
    advises = gate("hint", words, mode="advisory", guidance={"content": "Be kind."})
    asks = gate("asks", words)
    manifest = atlas(advises, asks, checkpoint_config={"budget": {"max_checkpoint_time_ms": 1}})
    # To read so many accents takes longer than a millisecond, on whatever machine.
    job = await run(
        world, desk, manifest, turn(say("asks", sure="understood")), turn(get()), payload={"text": "réfund refund " * 15_000}
    )  # fmt: skip
    assert desk.done == ["get 1"]
    told = await traces(world, job)
    assert [(kind, data["checkpoint_id"]) for kind, data in told][:2] == [("skipped", "hint"), ("triggered", "asks")]
    assert told[0][1]["reason"] == "max_checkpoint_time_ms"
    # A short text takes no time worth mention.
    soon = await run(
        world, desk, atlas(advises, version="2.0.0", checkpoint_config={"budget": {"max_checkpoint_time_ms": 60_000}}),
        turn(get("2")), payload={"text": "refund"}, slug="soon",
    )  # fmt: skip
    assert ("triggered hint" in await traced(world, soon), desk.done) == (True, ["get 1", "get 2"])


@pytest.mark.proves("D.374")
def test_what_cannot_be_a_trigger_or_a_validator_is_refused_where_it_is_declared() -> None:
    app = App("tests")
    app.trigger("mood")(_says_nothing)
    for name in ("", "with space", "mood"):
        with pytest.raises(InvalidApp):
            app.trigger(name)
    with pytest.raises(InvalidApp, match="2 arguments"):
        app.trigger("one")(lambda text: True)
    with pytest.raises(InvalidApp, match="1 argument"):
        app.validator("two")(lambda answer, more: None)
    assert (list(app.triggers), list(app.validators)) == (["mood"], [])


@pytest.mark.proves("D.364")
@pytest.mark.parametrize("name", ["plane.answer", "plane_answer", "plane.request_context", "plane_request_context"])
def test_the_names_of_the_planes_own_tools_are_taken(name: str) -> None:
    with pytest.raises(InvalidApp, match="the plane's own"):
        App("tests").tool(name=name)(lambda: None)
