"""What only Google ADK has: confirmations that are used up, tools that ask for one by themselves, and callbacks of others."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.adk.agents import Agent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from pydantic import BaseModel, Field

from cortex_plane import Client, ToolError
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.client.adapter import Adapter
from cortex_plane.client.dialogue import current_call
from cortex_plane.client.google_adk import CONFIRMATION, PlanePlugin
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.orgs import Role
from tests.client.test_authorization import careful, plane, server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.apart import Apart
from tests.fixtures.people import World, apply_policies

__all__ = ["careful", "plane", "server"]

ONE_ASKS = """
policies:
  - {name: ask, target: "second", effect: requires_approval}
  - {name: rest, target: "*", effect: allow}
"""
KEYS: Any = {"user_id": "customer-7", "session_id": "thread 1"}


class Order(BaseModel):
    cents: int


class OneCall(BaseLlm):
    """Makes the calls once, then repeats what the tools say."""

    model: str = "one-call"
    calls: list[tuple[str, dict[str, Any]]]
    asked: list[int] = Field(default_factory=list)
    counts_anew: bool = False
    """Whether the ids of its calls begin at 0 with each answer, as those of some providers do."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        self.asked.append(len(llm_request.contents))
        results = [part.function_response for part in llm_request.contents[-1].parts or [] if part.function_response]
        if results:
            parts = [types.Part(text="; ".join(str(result.response) for result in results))]
        else:
            parts = [types.Part.from_function_call(name=name, args=args) for name, args in self.calls]
            for number, part in enumerate(parts if self.counts_anew else ()):
                assert part.function_call is not None
                part.function_call.id = f"call_{number}"
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Conversation:
    """An agent of ADK with its saved sessions, made anew for each turn."""

    def __init__(
        self,
        plane: Client,
        tools: list[Any],
        calls: list[tuple[str, dict[str, Any]]],
        *,
        is_resumable: bool = False,
        **more: Any,
    ) -> None:
        self.model, self.sessions = OneCall(calls=calls), InMemorySessionService()
        self.sub_agent: Callable[[], Agent] | None = None
        self._resumability = ResumabilityConfig(is_resumable=True) if is_resumable else None
        self._plane, self._tools, self._more = plane, tools, more

    def plugin(self) -> PlanePlugin:
        return PlanePlugin(self._plane, agent="deployer", patience=0.2)

    def runner(self, plugin: PlanePlugin) -> Runner:
        sub_agents: Any = [self.sub_agent()] if self.sub_agent else []
        agent = Agent(name="support", model=self.model, tools=self._tools, sub_agents=sub_agents, **self._more)
        app = App(name="shop", root_agent=agent, plugins=[plugin], resumability_config=self._resumability)
        return Runner(app=app, session_service=self.sessions, auto_create_session=True)

    async def turn(self, message: types.Content | None = None) -> str:
        plugin = self.plugin()
        return text_of([event async for event in plugin.run(self.runner(plugin), **KEYS, new_message=message)])

    async def answer_confirmation(self) -> str:
        """As a page of the user's own does, whatever the plane says."""
        session = await self.sessions.get_session(app_name="shop", **KEYS)
        assert session is not None
        asked = [call for event in session.events for call in event.get_function_calls() if call.name == CONFIRMATION]
        response = types.FunctionResponse(id=asked[-1].id, name=CONFIRMATION, response={"confirmed": True})
        return await self.turn(types.UserContent(types.Part(function_response=response)))

    async def pending(self) -> list[dict[str, Any]]:
        plugin = self.plugin()
        return await plugin.pending(self.runner(plugin), **KEYS)


def text_of(events: list[Any]) -> str:
    parts = [part for event in events if event.content for part in event.content.parts or []]
    return "".join(part.text for part in parts if part.text)


BEGIN = types.UserContent("Begin")


@pytest.mark.proves("D.1010")
async def test_the_model_is_asked_again_only_when_all_calls_of_its_answer_have_a_result(
    careful: Client, strict: World
) -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(careful, [pay], [("pay", {"n": 1}), ("pay", {"n": 2})])
    await talk.turn(BEGIN)
    await decide_soon(strict, Choice.DENIED, reason="not this one")
    assert await talk.turn(types.UserContent("And now?")) == ""
    assert (len(await talk.pending()), len(talk.model.asked)) == (1, 1)
    await decide_soon(strict)
    text = await talk.turn()
    assert len(talk.model.asked) == 2
    assert "not this one" in text
    assert f"paid {ran[0]}" in text
    assert len(ran) == 1


@pytest.mark.proves("D.1010")
@pytest.mark.filterwarnings("ignore:.*ResumabilityConfig:UserWarning")
@pytest.mark.parametrize("is_resumable", [False, True])
async def test_a_sub_agent_goes_on_beside_a_call_that_ran(plane: Client, world: World, is_resumable: bool) -> None:
    await apply_policies(world.db, world.admin.actor, ONE_ASKS)
    ran: list[str] = []

    def first() -> str:
        ran.append("first")
        return "first done"

    def second() -> str:
        ran.append("second")
        return "second done"

    talk = Conversation(plane, [], [("transfer_to_agent", {"agent_name": "payer"})], is_resumable=is_resumable)
    talk.sub_agent = functools.partial(
        Agent, name="payer", model=OneCall(calls=[("first", {}), ("second", {})]), tools=[first, second]
    )
    await talk.turn(BEGIN)
    assert (ran, [wait["tool"] for wait in await talk.pending()]) == (["first"], ["second"])
    assert await talk.turn() == ""
    await decide_soon(world)
    text = await talk.turn()
    assert ran == ["first", "second"]
    assert "first done" in text
    assert "second done" in text


@pytest.mark.proves("D.1010")
async def test_a_confirmation_answered_too_early_is_asked_for_again(careful: Client, strict: World) -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(careful, [pay], [("pay", {"n": 1})])
    await talk.turn(BEGIN)
    for _ in range(2):
        await talk.answer_confirmation()
        assert (ran, len(talk.model.asked), len(await talk.pending())) == ([], 1, 1)
    await decide_soon(strict)
    assert "paid 1" in await talk.turn()
    assert (ran, await talk.pending()) == ([1], [])


@pytest.mark.proves("D.1010")
async def test_what_ran_is_used_where_the_session_is_as_before_the_run(careful: Client, strict: World) -> None:
    ran: list[Order] = []

    def pay(order: Order) -> dict[str, int]:
        ran.append(order)
        return {"paid": order.cents}

    talk = Conversation(careful, [pay], [("pay", {"order": {"cents": 5}})])
    await talk.turn(BEGIN)
    with pytest.raises(Exception, match="cents"):
        await decide_soon(strict, arguments={"order": {"cents": "many"}})
    await decide_soon(strict, arguments={"order": {"cents": 4}})
    saved = copy.deepcopy(talk.sessions.sessions)
    first = await talk.turn()
    talk.sessions.sessions = saved
    assert await talk.turn() == first
    assert ran == [Order(cents=4)]
    assert "'paid': 4" in first
    assert "An approver changed the arguments" in first
    assert [call.status for call in await ledger(strict)] == ["completed"]


@pytest.mark.proves("D.1010")
async def test_a_tool_that_asks_for_a_confirmation_by_itself_is_parked_and_keeps_its_own(
    careful: Client, strict: World
) -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(careful, [FunctionTool(pay, require_confirmation=True)], [("pay", {"n": 1})])
    await talk.turn(BEGIN)
    await decide_soon(strict)
    # What the plane approved confirms nothing that the tool itself asks.
    await talk.turn()
    assert (ran, await talk.pending()) == ([], [])
    assert [call.status for call in await ledger(strict)] == ["parked"]
    assert "paid 1" in await talk.answer_confirmation()
    assert ran == [1]
    assert [(call.status, call.attempt) for call in await ledger(strict)] == [("completed", 2)]


@pytest.mark.proves("D.1010")
async def test_nobody_is_asked_about_a_call_of_adk_that_cannot_run(careful: Client, strict: World) -> None:
    def pay(n: int) -> str:
        raise AssertionError(n)

    text = await Conversation(careful, [pay], [("pay", {"n": "many"}), ("pray", {})]).turn(BEGIN)
    assert "The arguments are not valid" in text
    assert "no tool with that name" in text
    assert await ledger(strict) == []


@pytest.mark.proves("D.1010")
async def test_an_error_in_a_callback_runs_nothing(plane: Client, world: World) -> None:
    class Broken(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise RuntimeError("broken options")

    def pay(n: int) -> str:
        raise AssertionError(n)

    talk = Conversation(plane, [pay], [("pay", {"n": 1})])
    plugin = PlanePlugin(plane, agent="deployer", tools=Broken(pay=None))
    with pytest.raises(RuntimeError, match="broken options"):
        text_of([event async for event in plugin.run(talk.runner(plugin), **KEYS, new_message=BEGIN)])
    assert await ledger(world) == []


@pytest.mark.proves("D.1010")
@pytest.mark.parametrize("kind", ["changes", "answers"])
async def test_the_plane_learns_of_other_callbacks(plane: Client, world: World, kind: str) -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    def change(args: dict[str, Any], **_: Any) -> None:
        args["n"] = 1000

    def answer(**_: Any) -> dict[str, Any]:
        return {"result": "from a cache"}

    callbacks: dict[str, Callable[..., Any]] = {"changes": change, "answers": answer}
    talk = Conversation(plane, [pay], [("pay", {"n": 1})], before_tool_callback=callbacks[kind])
    await talk.turn(BEGIN)
    (call,) = await ledger(world)
    expected = {"changes": (1000, "uncertain"), "answers": (None, "completed")}
    assert (next(iter(ran), None), call.status) == expected[kind]


@pytest.mark.proves("D.1010")
async def test_a_call_in_a_session_that_is_held_goes_on_when_it_is_released(
    server: Apart, plane: Client, world: World
) -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    calls = Adapter(plane=plane, agent="deployer").calls("shop/customer-7/thread 1")
    await calls.completed(await calls.authorize("look", {}, key="1"), "seen")
    (session,) = [session async for session in plane.sessions.list()]
    talk = Conversation(plane, [pay], [("pay", {"n": 1})])
    async with Client(server.url, world.admin.secret) as admin:
        await admin.sessions.pause(session.id)
        for prompt in (BEGIN, None):
            await talk.turn(prompt)
            assert (ran, [wait["call_id"] for wait in await talk.pending()]) == ([], [None])
        await admin.sessions.resume(session.id)
    assert "paid 1" in await talk.turn()
    assert (ran, await talk.pending()) == ([1], [])


@pytest.mark.proves("D.1109")
async def test_each_tool_that_runs_has_its_own_current_call(plane: Client, world: World) -> None:
    begun, seen = asyncio.Event(), dict[int, Any]()

    async def pay(n: int) -> str:
        if n == 1:
            begun.set()
        await begun.wait()
        seen[n] = current_call()
        if n == 3:
            raise ToolError("There is no such order.")
        return "paid"

    after: list[Any] = []
    callbacks: dict[str, Any] = {"after_tool_callback": lambda **_: after.append(current_call())}
    await Conversation(plane, [pay], [("pay", {"n": 2}), ("pay", {"n": 1})], **callbacks).turn(BEGIN)
    calls = {str(call.id) for call in await ledger(world)}
    assert {call.id for call in seen.values()} == calls
    assert len(calls) == 2
    assert after == [None, None]
    assert current_call() is None
    with pytest.raises(ToolError):
        await Conversation(plane, [pay], [("pay", {"n": 3})]).turn(BEGIN)
    assert seen[3].id not in calls


@pytest.mark.proves("D.1108")
async def test_an_id_that_comes_again_in_a_later_turn_is_another_call(careful: Client, strict: World) -> None:
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(careful, [pay], [("pay", {"n": 1})])
    talk.model.counts_anew = True
    for turn, n in enumerate((1, 1, 2), 1):
        talk.model.calls = [("pay", {"n": n})]
        await talk.turn(types.UserContent("Pay"))
        await talk.turn()
        (wait,) = await talk.pending()
        assert wait["arguments"] == {"n": n}
        await decide_soon(strict)
        assert f"paid {n}" in await talk.turn()
        assert len(ran) == turn
    assert ran == [1, 1, 2]
    assert [call.status for call in await ledger(strict)] == ["completed"] * 3


@pytest.mark.proves("D.1020")
async def test_one_app_serves_many_people(server: Apart, world: World) -> None:
    service = await world.service_with(Role.MEMBER, permissions=[Grantable.SESSION_ON_BEHALF])
    pat, kim = await world.person(Role.MEMBER), await world.person(Role.MEMBER)
    people = {"user 1": str(pat.member_id), "user 2": str(kim.member_id), "nobody": ""}
    ran: list[int] = []

    def pay(n: int) -> str:
        ran.append(n)
        return "paid"

    async with Client(server.url, service.secret) as client:
        plugin = PlanePlugin(client, agent="deployer", patience=0.2, on_behalf_of=lambda user: people[user])
        runner = Conversation(client, [pay], [("pay", {"n": 1})]).runner(plugin)
        for user in ("user 1", "user 2"):
            assert [event async for event in plugin.run(runner, user_id=user, session_id="1", new_message=BEGIN)]
        with pytest.raises(RuntimeError, match="names nobody"):
            assert [event async for event in plugin.run(runner, user_id="nobody", session_id="1", new_message=BEGIN)]
        owners = [session.user_account_id async for session in client.sessions.list()]
    assert sorted(owners, key=str) == sorted([pat.member_id, kim.member_id], key=str)
    assert ran == [1, 1]
