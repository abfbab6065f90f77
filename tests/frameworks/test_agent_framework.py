"""What only Microsoft Agent Framework has: approvals bound to arguments, requests of tools themselves, and sessions to give."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionMiddleware,
    Message,
    ResponseStream,
    UsageDetails,
    UserInputRequiredException,
    tool,
)

from cortex_plane import Client
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.client.agent_framework import next_turn, pending, plane_middleware
from cortex_plane.kernel.errors import InvalidInput
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


class OneAnswer(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Makes the calls once, then repeats what the tools say."""

    def __init__(self, calls: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__()
        self.calls = calls

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, **_: Any) -> Any:
        results = [content for message in messages for content in message.contents if content.type == "function_result"]
        if results:
            contents = [Content.from_text("; ".join(str(result.result) for result in results))]
        else:
            contents = [
                Content.from_function_call(f"call-{number}", name, arguments=arguments)
                for number, (name, arguments) in enumerate(self.calls)
            ]
        usage = UsageDetails(input_token_count=7, output_token_count=3)

        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", contents)], model="scripted", usage_details=usage)

        async def updates() -> Any:
            yield ChatResponseUpdate(contents=contents, role="assistant", model="scripted")
            yield ChatResponseUpdate(contents=[Content.from_usage(usage)], role="assistant", model="scripted")

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else answer()


class Conversation:
    """An agent with its saved session, made anew for each turn."""

    def __init__(self, plane: Client, tools: list[Any], calls: list[tuple[str, dict[str, Any]]]) -> None:
        self._plane, self._tools, self._calls = plane, tools, calls
        self.saved = json.dumps(AgentSession(session_id="thread 1").to_dict())
        self.inner: list[Any] = []

    @property
    def session(self) -> AgentSession:
        return AgentSession.from_dict(json.loads(self.saved))

    async def turn(self, prompt: str | None = None, answers: list[Content] | None = None) -> str:
        session = self.session
        messages = next_turn(session, prompt) if answers is None else [Message("user", answers)]
        middleware = [*plane_middleware(self._plane, agent="deployer", patience=0.2), *self.inner]
        agent = Agent(OneAnswer(self._calls), name="support", tools=self._tools, middleware=middleware)
        response = await agent.run(messages, session=session)
        self.saved = json.dumps(session.to_dict())
        return response.text


@pytest.mark.proves("D.1011")
async def test_edited_arguments_are_validated_and_run_though_the_approval_is_bound_to_others(
    careful: Client, strict: World
) -> None:
    days: list[date] = []

    @tool
    def book(day: date, ctx: FunctionInvocationContext) -> dict[str, str]:
        assert ctx.session is not None
        days.append(day)
        return {"booked": day.isoformat()}

    talk = Conversation(careful, [book], [("book", {"day": "2026-11-20"})])
    await talk.turn("Book tomorrow")
    assert [wait["arguments"] for wait in pending(talk.session)] == [{"day": "2026-11-20"}]
    with pytest.raises(Exception, match="day"):
        await decide_soon(strict, arguments={"day": 7})
    await decide_soon(strict, arguments={"day": "2026-11-21"})
    before = talk.saved
    text = await talk.turn()
    assert days == [date(2026, 11, 21)]
    assert '"booked": "2026-11-21"' in text
    assert "An approver changed the arguments" in text
    assert pending(talk.session) == []
    # The session from before the run, as after a crash: what ran is used.
    talk.saved = before
    assert await talk.turn() == text
    assert days == [date(2026, 11, 21)]
    assert [call.status for call in await ledger(strict)] == ["completed"]


@pytest.mark.proves("D.1011")
async def test_a_denial_reaches_the_model_and_siblings_that_ran_are_not_run_again(
    careful: Client, strict: World
) -> None:
    ran: list[int] = []

    @tool
    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(careful, [pay], [("pay", {"n": 1}), ("pay", {"n": 2})])
    await talk.turn("Pay")
    await decide_soon(strict, Choice.DENIED, reason="not this one")
    assert await talk.turn("And now?") == ""
    (waiting,) = pending(talk.session)
    await decide_soon(strict)
    text = await talk.turn()
    assert ran == [waiting["arguments"]["n"]]
    assert "not this one" in text
    assert f"paid {ran[0]}" in text


@pytest.mark.proves("D.1011")
async def test_what_ran_beside_a_call_that_waits_is_not_run_again(plane: Client, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, ONE_ASKS)
    ran: list[str] = []

    @tool
    def first() -> str:
        ran.append("first")
        return "first done"

    @tool
    def second() -> str:
        ran.append("second")
        return "second done"

    talk = Conversation(plane, [first, second], [("first", {}), ("second", {})])
    await talk.turn("Begin")
    assert (ran, [wait["tool"] for wait in pending(talk.session)]) == (["first"], ["second"])
    await decide_soon(world)
    text = await talk.turn()
    assert ran == ["first", "second"]
    assert "first done" in text
    assert "second done" in text


@pytest.mark.proves("D.1011")
async def test_a_tool_that_asks_by_itself_is_parked_and_keeps_its_own_request(careful: Client, strict: World) -> None:
    ran: list[int] = []

    @tool
    def pay(n: int, ctx: FunctionInvocationContext) -> str:
        if "approval_response" not in ctx.metadata:
            id = ctx.metadata["function_call_occurrence_id"]
            call = Content.from_function_call(ctx.metadata["call_id"], "pay", arguments={"n": n}, id=id)
            raise UserInputRequiredException([Content.from_function_approval_request(id, call)])
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(careful, [pay], [("pay", {"n": 1})])
    await talk.turn("Pay")
    await decide_soon(strict)
    # What the plane approved approves nothing that the tool itself asks.
    await talk.turn()
    assert (ran, pending(talk.session)) == ([], [])
    assert [call.status for call in await ledger(strict)] == ["parked"]
    (own,) = talk.session.state["tool_approval"]["pending_approval_requests"]
    assert "paid 1" in await talk.turn(answers=[Content.from_dict(own).to_function_approval_response(True)])
    assert ran == [1]
    assert [(call.status, call.attempt) for call in await ledger(strict)] == [("completed", 2)]


@pytest.mark.proves("D.1011")
async def test_nobody_is_asked_about_a_call_of_agent_framework_that_cannot_run(careful: Client, strict: World) -> None:
    @tool
    def pay(n: int) -> str:
        raise AssertionError(n)

    text = await Conversation(careful, [pay], [("pay", {"n": "many"}), ("pray", {})]).turn("Pay")
    assert "The arguments are not valid" in text
    assert "not found" in text
    assert await ledger(strict) == []


@pytest.mark.proves("D.1011")
async def test_a_run_without_a_session_is_an_error_at_the_start(plane: Client, world: World) -> None:
    agent = Agent(OneAnswer([("pay", {"n": 1})]), middleware=plane_middleware(plane, agent="deployer"))
    with pytest.raises(InvalidInput) as caught:
        await agent.run("Pay")
    assert "AgentSession" in str(caught.value.hint)
    assert await ledger(world) == []


@pytest.mark.proves("D.1011")
async def test_an_error_in_the_middleware_runs_nothing(plane: Client, world: World) -> None:
    class Broken(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise RuntimeError("broken options")

    @tool
    def pay(n: int) -> str:
        raise AssertionError(n)

    middleware = plane_middleware(plane, agent="deployer", tools=Broken(pay=None))
    agent = Agent(OneAnswer([("pay", {"n": 1})]), tools=[pay], middleware=middleware)
    response = await agent.run("Pay", session=AgentSession())
    assert "Function failed" in response.text
    assert await ledger(world) == []


@pytest.mark.proves("D.1011")
async def test_the_plane_learns_of_other_middleware_that_changes_arguments(plane: Client, world: World) -> None:
    ran: list[int] = []

    class Change(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
            context.arguments = {"n": 1000}
            await call_next()

    @tool
    def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    talk = Conversation(plane, [pay], [("pay", {"n": 1})])
    talk.inner = [Change()]
    await talk.turn("Pay")
    assert ran == [1000]
    assert [call.status for call in await ledger(world)] == ["uncertain"]


@pytest.mark.proves("D.1011")
async def test_tokens_of_streamed_answers_are_counted(plane: Client, world: World) -> None:
    @tool
    def pay(n: int) -> str:
        return f"paid {n}"

    agent = Agent(OneAnswer([("pay", {"n": 1})]), tools=[pay], middleware=plane_middleware(plane, agent="deployer"))
    texts = [update.text async for update in agent.run("Pay", session=AgentSession(), stream=True)]
    assert "paid 1" in "".join(texts)
    assert [call.status for call in await ledger(world)] == ["completed"]
    (usage,) = [row async for row in plane.usage.list()]
    assert usage.prompt_tokens == 14


@pytest.mark.proves("D.1020")
async def test_one_agent_serves_many_people(server: Apart, world: World) -> None:
    service = await world.service_with(Role.MEMBER, permissions=[Grantable.SESSION_ON_BEHALF])
    people = [str((await world.person(Role.MEMBER)).member_id) for _ in range(2)]

    @tool
    def pay(n: int) -> str:
        return "paid"

    async with Client(server.url, service.secret) as client:
        middleware = plane_middleware(
            client, agent="deployer", patience=0.2, on_behalf_of=lambda session: session.state["member"]
        )
        for person in people:
            agent = Agent(OneAnswer([("pay", {"n": 1})]), name="support", tools=[pay], middleware=middleware)
            session = AgentSession(session_id="thread 1")
            session.state["member"] = person
            await agent.run(next_turn(session, "Pay"), session=session)
        owners = [str(session.user_account_id) async for session in client.sessions.list()]
    assert sorted(owners) == sorted(people)
    assert [call.status for call in await ledger(world)] == ["completed"] * 2
