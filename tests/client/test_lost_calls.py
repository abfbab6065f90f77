"""Calls whose process died: what people answered waits for the next process, and what the tool itself knows is asked of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from cortex_plane import Client, DidNotHappen, Happened
from cortex_plane.approvals.model.approvals import ApprovalStatus, Channel, EffectAnswer
from cortex_plane.approvals.verbs import approvals, settlements
from cortex_plane.client.authorization import Advice, ToolOptions
from cortex_plane.client.dialogue import current_call
from cortex_plane.jobs.model.effects import Verdict
from cortex_plane.kernel.errors import InvalidInput
from tests.client.test_authorization import calls_of, plane, server
from tests.client.test_guard import ledger
from tests.fixtures.clock import Clock
from tests.fixtures.people import World

__all__ = ["plane", "server"]


async def answer_doubt(world: World, verdict: Verdict, result: Any = None) -> None:
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING)
    (card,) = page.items
    answer = EffectAnswer(verdict=verdict, result=result)
    await settlements.answer(world.db, world.admin.actor, card.id, answer, Channel.API)


@pytest.mark.proves("D.1061")
async def test_an_answer_of_people_is_for_whoever_asks_next_and_then_no_more(plane: Client, world: World) -> None:
    dead, alive, third = (calls_of(plane, runner=name) for name in ("dead", "alive", "third"))
    lost = await dead.authorize("pay", {"n": 1}, "id-1")
    await dead.unknown(lost, "it may have been sent")
    await answer_doubt(world, Verdict.HAPPENED, {"id": "r-1"})
    found = await alive.authorize("pay", {"n": 1}, "id-2")
    assert (found.next, found.call_id, found.result, found.is_new) == (Advice.USE, lost.call_id, {"id": "r-1"}, True)
    again = await alive.authorize("pay", {"n": 1}, "id-2")
    assert (again.next, again.is_new) == (Advice.USE, False)
    # It is told: a third one means another act.
    other = await third.authorize("pay", {"n": 1}, "id-3")
    assert (other.next, other.call_id != lost.call_id) == (Advice.RUN, True)
    await third.completed(other, None)

    # It did not happen: the new id begins it again, and is the same call.
    lost = await dead.authorize("pay", {"n": 2}, "id-4")
    await dead.unknown(lost, "it may have been sent")
    await answer_doubt(world, Verdict.DID_NOT_HAPPEN)
    begun = await alive.authorize("pay", {"n": 2}, "id-5")
    assert (begun.next, begun.call_id, begun.attempt) == (Advice.RUN, lost.call_id, 2)
    await alive.completed(begun, None)

    # Nobody knows and nobody will: it is not repeated in silence.
    lost = await dead.authorize("pay", {"n": 3}, "id-6")
    await dead.unknown(lost, "it may have been sent")
    await answer_doubt(world, Verdict.FAIL)
    stopped = await alive.authorize("pay", {"n": 3}, "id-7")
    assert (stopped.next, stopped.call_id) == (Advice.STOP, lost.call_id)
    assert {call.status for call in await ledger(world)} == {"completed", "failed"}


@pytest.mark.proves("D.1061")
async def test_a_process_that_waits_for_the_answer_has_it(plane: Client, world: World) -> None:
    waiting, other = calls_of(plane, runner="waiting"), calls_of(plane, runner="other")
    lost = await waiting.authorize("pay", {"n": 1}, "id-1")
    await waiting.unknown(lost, "it may have been sent")
    asking = asyncio.create_task(waiting.authorize("pay", {"n": 1}, "id-1", ToolOptions(wait=30)))
    await answer_doubt(world, Verdict.HAPPENED)
    assert (await asking).next is Advice.USE
    begun = await other.authorize("pay", {"n": 1}, "id-2")
    assert (begun.next, begun.call_id != lost.call_id) == (Advice.RUN, True)
    await other.completed(begun, None)


@pytest.mark.proves("D.1100")
async def test_an_answer_of_people_is_also_for_the_process_that_ran_the_call(plane: Client, world: World) -> None:
    calls = calls_of(plane, runner="same")
    lost = await calls.authorize("pay", {"n": 1}, "id-1")
    await calls.unknown(lost, "it may have been sent")
    await answer_doubt(world, Verdict.HAPPENED, {"id": "r-1"})
    found = await calls.authorize("pay", {"n": 1}, "id-2")
    assert (found.next, found.call_id, found.result, found.is_new) == (Advice.USE, lost.call_id, {"id": "r-1"}, True)
    other = await calls.authorize("pay", {"n": 1}, "id-3")
    assert (other.next, other.call_id != lost.call_id) == (Advice.RUN, True)
    await calls.completed(other, None)
    # It did not happen: the next id begins it again, and no call stays open.
    lost = await calls.authorize("pay", {"n": 2}, "id-4")
    await calls.unknown(lost, "it may have been sent")
    await answer_doubt(world, Verdict.DID_NOT_HAPPEN)
    begun = await calls.authorize("pay", {"n": 2}, "id-5")
    assert (begun.next, begun.call_id, begun.attempt) == (Advice.RUN, lost.call_id, 2)
    await calls.completed(begun, None)
    assert {call.status for call in await ledger(world)} == {"completed"}


@pytest.mark.proves("D.1062")
@pytest.mark.parametrize("face", ["async", "sync"])
async def test_a_probe_says_whether_a_lost_call_happened(
    plane: Client, world: World, admin: asyncpg.Connection, face: str
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    known: dict[int, Happened | DidNotHappen | None] = {1: Happened("seen"), 2: DidNotHappen(), 3: None}
    tool = ToolOptions(on_uncertain="probe", probe=lambda n: known[n], timeout=60)
    answers = []
    for n in known:
        assert (await calls_of(plane, runner="dead").authorize("pay", {"n": n}, f"id-{n}", tool)).next is Advice.RUN
    await clock.advance(timedelta(minutes=5))
    alive = calls_of(plane, runner="alive")
    for n in known:
        if face == "sync":
            answers.append(await asyncio.to_thread(alive.sync.authorize, "pay", {"n": n}, f"new-{n}", tool))
        else:
            answers.append(await alive.authorize("pay", {"n": n}, f"new-{n}", tool))
    assert [answer.next for answer in answers] == [Advice.USE, Advice.RUN, Advice.DOUBT]
    assert (answers[0].result, answers[1].attempt) == ("seen", 2)
    assert "probe could not tell" in str(answers[2].reason)


@pytest.mark.proves("D.1062")
async def test_a_tool_has_the_key_of_its_call(plane: Client, world: World) -> None:
    calls = calls_of(plane)
    answer = await calls.authorize("pay", {}, "id-1")

    async def pay() -> str | None:
        call = current_call()
        return None if call is None else call.id

    assert await calls.run(answer, pay) == answer.call_id
    assert current_call() is None
    for options in ({"on_uncertain": "probe"}, {"probe": lambda: None}):
        unusable: Any = options
        with pytest.raises(InvalidInput, match="go together"):
            ToolOptions(**unusable)
