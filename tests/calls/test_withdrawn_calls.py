"""An agent that runs elsewhere takes a call back before it began."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.calls.test_http_calls import REFUND, asked, decide, ended, looked, opened, post
from tests.calls.test_parked_and_doubted import cards, trail
from tests.fixtures.people import World


@pytest.mark.proves("D.1050")
async def test_a_withdrawn_call_asks_nobody_and_never_runs(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    call = await asked(http, strict.service, session, key="a")
    kept = await asked(http, strict.service, session, key="b", arguments={**REFUND, "cents": 1})
    assert len(await cards(http, strict, session)) == 2
    for _ in range(2):  # told twice the same, nothing changes
        receipt = await ended(http, strict.service, call, "withdrawn", error="the user went another way")
        assert receipt["status"] == "rejected"
    assert [card["id"] for card in await cards(http, strict, session)] == [kept["approval_id"]]
    again = await asked(http, strict.service, session, key="a")
    assert (again["id"], again["next"], again["reason"]) == (call["id"], "stop", "the user went another way")
    refused = await post(
        http, strict.service, f"/v1/calls/{call['id']}/intent", status=409, input_hash=call["input_hash"]
    )
    assert refused["code"] == "call_refused"
    actions = await trail(http, strict, session)
    assert (actions.count("call_withdrawn"), actions.count("approval_cancelled")) == (1, 1)
    # The other call goes on, and the session with it.
    await decide(strict, kept)
    assert (await looked(http, strict.service, kept["id"]))["next"] == "begin"
    # What was approved and has not begun can be taken back too; nothing is left open.
    await ended(http, strict.service, kept, "withdrawn")
    await post(http, strict.service, f"/v1/sessions/{session}/complete")


@pytest.mark.proves("D.1050")
async def test_what_has_begun_is_not_withdrawn_and_strangers_withdraw_nothing(
    http: httpx.AsyncClient, world: World, strict: World
) -> None:
    begun = await asked(http, world.service, await opened(http, world.service), dispatch=True, sender="s1")
    refused = await ended(http, world.service, begun, "withdrawn", status=409)
    assert refused["code"] == "call_in_doubt"
    waiting = await asked(http, strict.service, await opened(http, strict.service))
    await ended(http, strict.admin, waiting, "withdrawn", status=403)
    await ended(http, strict.service, waiting, "withdrawn", status=422, result={"x": 1})
    assert (await looked(http, strict.service, waiting["id"]))["status"] == "awaiting"


@pytest.mark.proves("D.1050")
async def test_calls_that_share_a_request_are_withdrawn_one_by_one(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    calls = [await asked(http, strict.service, session, key=key) for key in "ab"]
    assert len({call["approval_id"] for call in calls}) == len(await cards(http, strict, session))
    await ended(http, strict.service, calls[0], "withdrawn")
    assert len(await cards(http, strict, session)) == 1
    await decide(strict, calls[1])
    shown = [await looked(http, strict.service, call["id"]) for call in calls]
    assert [call["next"] for call in shown] == ["stop", "begin"]


@pytest.mark.proves("D.1050")
async def test_of_a_withdrawal_and_a_decision_at_once_one_outcome_holds(http: httpx.AsyncClient, strict: World) -> None:
    session = await opened(http, strict.service)
    for number in range(4):
        call = await asked(http, strict.service, session, key=str(number), arguments={**REFUND, "cents": number})
        await asyncio.gather(
            decide(strict, call), ended(http, strict.service, call, "withdrawn"), return_exceptions=True
        )
        shown = await looked(http, strict.service, call["id"])
        # An approval that came first is taken back too; one that came later finds nothing to decide.
        assert (shown["next"], shown["status"]) == ("stop", "rejected")
    assert await cards(http, strict, session) == []
