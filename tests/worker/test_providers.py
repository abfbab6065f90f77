"""Real models over their own protocols: what is sent, what is made of the answer, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from cortex_plane.agents.model.completions import (
    AssistantTurn,
    CallRequest,
    CallResult,
    ModelError,
    ModelRequest,
    ModelUsage,
    Response,
    StopReason,
    TextChunk,
    ToolSpec,
    ToolTurn,
    Turn,
    UserTurn,
)
from cortex_plane.kernel.errors import ErrorClass, SetupError
from cortex_plane.worker.models.backends import Backends, cost_micros
from cortex_plane.worker.models.credentials import ProviderKeys
from tests.providers import Answer, Provider, ToolUse, anthropic_server, call, calls, fails, openai_server, says

SHIP = ToolSpec(
    name="ship",
    description="Ships.",
    parameters={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
)
LONG = "Said in several pieces, so that it can break in the middle."


@dataclass
class Stage:
    provider: Provider
    model: str
    backends: Backends

    async def ask(self, *turns: Turn, model: str | None = None, **more: Any) -> Response:
        asked = {
            "model": model or self.model, "system_prompt": "Be good.", "turns": turns or (UserTurn("hello"),),
            "tools": [SHIP], "temperature": 0.5, "max_tokens": 100, "settings": {}, "turn_index": 0, **more,
        }  # fmt: skip
        self.pieces = [p async for p in self.backends.find(asked["model"]).stream(ModelRequest(**asked))]
        (response,) = (piece for piece in self.pieces if isinstance(piece, Response))
        return response

    async def fails(self, answer: Answer) -> ModelError:
        self.provider.say(answer)
        with pytest.raises(ModelError) as caught:
            await self.ask()
        assert self.provider.key not in str(caught.value)
        return caught.value


@pytest_asyncio.fixture
async def anthropic() -> AsyncIterator[Stage]:
    async with anthropic_server() as provider:
        keys = ProviderKeys(None, b"", {"ANTHROPIC_API_KEY": provider.key, "ANTHROPIC_BASE_URL": provider.url})
        backends = Backends(keys=keys)
        yield Stage(provider, "anthropic:claude-haiku-4-5", backends)
        await backends.close()


@pytest_asyncio.fixture
async def openai() -> AsyncIterator[Stage]:
    async with openai_server() as provider:
        keys = ProviderKeys(None, b"", {"OPENAI_API_KEY": provider.key, "OPENAI_BASE_URL": provider.url})
        backends = Backends(keys=keys)
        yield Stage(provider, "openai:gpt-5.4-mini", backends)
        await backends.close()


@pytest.fixture(params=["anthropic", "openai"])
def stage(request: pytest.FixtureRequest) -> Stage:
    made: Stage = request.getfixturevalue(request.param)
    return made


# What is imported ------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.214")
def test_a_worker_imports_no_provider_before_the_first_call() -> None:
    code = (
        "import sys, cortex_plane.main.worker_process, cortex_plane.main.main, cortex_plane.worker.worker\n"
        "from cortex_plane.worker.models.backends import Backends\n"
        "Backends()\n"
        "heavy = {'anthropic', 'openai', 'pydantic_ai', 'genai_prices', 'httpx2'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# What is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.215")
async def test_anthropic_is_asked_to_cache_prompt_tools_and_conversation(anthropic: Stage) -> None:
    anthropic.provider.say(says("Hi.", cache_read_tokens=70, cache_write_tokens=30))
    response = await anthropic.ask(UserTurn("hello"), AssistantTurn(text="Yes?"), UserTurn("again"))
    body = anthropic.provider.asked[0].body
    assert body["system"][-1]["cache_control"]["type"] == "ephemeral"
    assert body["tools"][-1]["cache_control"]["type"] == "ephemeral"
    marked = [
        number
        for number, message in enumerate(body["messages"])
        for block in message["content"]
        if "cache_control" in block
    ]
    assert marked == [2]
    # What was read from the cache and written to it is part of the prompt.
    assert response.usage == ModelUsage(
        prompt_tokens=200, completion_tokens=20, cache_read_tokens=70, cache_write_tokens=30
    )


@pytest.mark.proves("D.215")
async def test_openai_caches_by_itself_and_is_counted(openai: Stage) -> None:
    openai.provider.say(says("Hi.", cache_read_tokens=70))
    response = await openai.ask()
    assert response.usage == ModelUsage(prompt_tokens=170, completion_tokens=20, cache_read_tokens=70)
    assert "cache_control" not in str(openai.provider.asked[0].body)


@pytest.mark.proves("D.210")
async def test_a_conversation_is_sent_in_order_whoever_had_it_before(stage: Stage) -> None:
    """Ids that were used twice, calls without results, bad JSON and empty texts would each be refused."""
    again = CallRequest(id="call_1_1", name="ship", arguments={"to": "Bob"})
    turns: list[Turn] = [
        AssistantTurn(text="I greet first."),
        UserTurn("ship it"),
        AssistantTurn(
            text="  ",
            calls=(
                CallRequest(id="call_1_1", name="ship", arguments={"to": "Ada"}),
                CallRequest(id="a strange id!", name="ship", arguments='{"to": "Ad'),
            ),
        ),
        ToolTurn(
            (
                CallResult(call_id="call_1_1", name="ship", content='{"ok":true}'),
                CallResult(call_id="a strange id!", name="ship", content='{"error":"no"}', is_error=True),
            )
        ),
        AssistantTurn(text=""),
        UserTurn(" "),
        AssistantTurn(text=None, calls=(again,)),
        UserTurn("what happened?"),
    ]
    stage.provider.say(says("All is well."))
    assert (await stage.ask(*turns)).text == "All is well."
    text = str(stage.provider.asked[0].body["messages"])
    assert text.index("began earlier") < text.index("I greet first.") < text.index("ship it")
    assert text.index('{"ok":true}') < text.index("No result of this call was recorded")
    assert text.index("No result of this call was recorded") < text.index("what happened?")
    assert "INVALID_JSON" in text
    assert stage.provider.asked[0].tools == ["ship"]


@pytest.mark.proves("D.210")
async def test_temperature_and_limits_are_sent_and_the_vendors_own_retries_are_off(stage: Stage) -> None:
    await stage.ask()
    body = stage.provider.asked[0].body
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0.5, 100, True)
    await stage.fails(fails(529))
    await stage.fails(fails(500))
    assert len(stage.provider.asked) == 3


# What is made of it ----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.210")
async def test_text_comes_as_it_is_spoken_and_thinking_does_not(stage: Stage) -> None:
    stage.provider.say(says(LONG, thinking="Let me see."))
    response = await stage.ask()
    said = [piece.text for piece in stage.pieces if isinstance(piece, TextChunk)]
    assert len(said) > 2
    assert "".join(said) == response.text == LONG
    assert (response.stop_reason, response.model) == (StopReason.END, stage.model)


@pytest.mark.proves("D.213")
async def test_arguments_come_as_they_were_written(stage: Stage) -> None:
    stage.provider.say(calls(call("ship", to="Ada"), ToolUse("ship", '{"to": '), call("ship"), text="I ship."))
    response = await stage.ask()
    assert [each.name for each in response.calls] == ["ship"] * 3
    assert response.calls[1].arguments == '{"to": '
    assert response.stop_reason is StopReason.TOOL_CALLS
    assert not any(each.truncated for each in response.calls)
    assert len({each.id for each in response.calls}) == 3


@pytest.mark.proves("D.213")
async def test_calls_of_an_answer_that_was_cut_off_are_marked(stage: Stage) -> None:
    stage.provider.say(calls(call("ship", to="Ada"), ToolUse("ship", ""), truncated=True), says("Half", truncated=True))
    response = await stage.ask()
    assert response.stop_reason is StopReason.MAX_TOKENS
    assert [each.truncated for each in response.calls] == [True, True]
    response = await stage.ask()
    assert (response.text, response.stop_reason) == ("Half", StopReason.MAX_TOKENS)


@pytest.mark.proves("D.213")
async def test_a_refusal_is_told_with_its_reason(stage: Stage) -> None:
    stage.provider.say(Answer(refusal="I will not."), says("So far so good.", refusal="No more."))
    response = await stage.ask()
    assert (response.text, response.stop_reason, response.refusal) == (None, StopReason.REFUSAL, "I will not.")
    response = await stage.ask()
    assert (response.text, response.stop_reason) == ("So far so good.", StopReason.REFUSAL)


# What goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.212")
@pytest.mark.parametrize(
    ("status", "retry_after", "kind", "wait"),
    [
        (429, "7", ErrorClass.TRANSIENT, 7),
        (429, "1.5", ErrorClass.TRANSIENT, 1.5),
        (429, None, ErrorClass.TRANSIENT, None),
        (429, "soon", ErrorClass.TRANSIENT, None),
        (529, "3", ErrorClass.TRANSIENT, 3),
        (503, None, ErrorClass.TRANSIENT, None),
        (500, None, ErrorClass.INFRASTRUCTURE, None),
        (400, None, ErrorClass.PERMANENT, None),
        (404, None, ErrorClass.PERMANENT, None),
        (413, None, ErrorClass.PERMANENT, None),
    ],
)
async def test_each_status_is_an_error_that_says_what_to_do(
    stage: Stage, status: int, retry_after: str | None, kind: ErrorClass, wait: float | None
) -> None:
    error = await stage.fails(fails(status, retry_after, message="my own words"))
    assert (error.status, error.error_class, error.retry_after) == (status, kind, wait)
    assert f"answered {status} for `{stage.model}`: my own words" in error.message
    assert error.hint


@pytest.mark.proves("D.212")
async def test_a_date_to_come_back_at_is_understood(stage: Stage) -> None:
    error = await stage.fails(fails(429, "Wed, 21 Oct 2099 07:28:00 GMT"))
    assert error.retry_after is not None
    assert error.retry_after > 10**8
    error = await stage.fails(fails(429, "Wed, 21 Oct 2015 07:28:00 GMT"))
    assert error.retry_after == 0


@pytest.mark.proves("D.212")
async def test_a_wrong_key_is_named_by_its_end_and_never_told(stage: Stage) -> None:
    right, stage.provider.key = stage.provider.key, "sk-of-somebody-else"
    with pytest.raises(ModelError) as caught:
        await stage.ask()
    error = str(caught.value)
    assert (caught.value.status, caught.value.error_class) == (401, ErrorClass.PERMANENT)
    assert right not in error
    assert f"{stage.model.partition(':')[0].upper()}_API_KEY (…{right[-4:]})" in error
    assert "cortex model-key set" in error


@pytest.mark.proves("D.212")
@pytest.mark.parametrize(
    "broken",
    [
        says(LONG, cut=True),
        says(LONG, ends_early=True),
        calls(call("ship", to="Ada"), ends_early=True),
        says(LONG, broken=b"no json at all"),
        says(LONG, fails_midway="overloaded_error"),
    ],
)
async def test_an_answer_that_breaks_is_no_answer_and_is_tried_again(stage: Stage, broken: Answer) -> None:
    error = await stage.fails(broken)
    assert error.error_class in (ErrorClass.INFRASTRUCTURE, ErrorClass.TRANSIENT)
    assert error.hint
    stage.provider.say(says("Better."))
    assert (await stage.ask()).text == "Better."


@pytest.mark.proves("D.212")
@pytest.mark.parametrize(
    "event",
    [
        b'{"choices": 5}',
        b"[1]",
        b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":5,"arguments":"{}"}}]}}]}',
    ],
)
async def test_an_event_that_breaks_the_protocol_is_said_to(openai: Stage, event: bytes) -> None:
    error = await openai.fails(says(LONG, broken=event))
    assert "something that its own protocol does not have" in error.message
    assert error.error_class is ErrorClass.INFRASTRUCTURE


@pytest.mark.proves("D.212")
async def test_money_that_is_missing_is_not_asked_for_twice(openai: Stage, anthropic: Stage) -> None:
    error = await anthropic.fails(fails(400, message="Your credit balance is too low to access the API."))
    assert (error.code, error.error_class) == ("model_quota", ErrorClass.PERMANENT)
    error = await anthropic.fails(fails(400, message="prompt is too long: 300000 tokens > 200000 maximum"))
    assert (error.code, error.error_class) == ("prompt_too_long", ErrorClass.PERMANENT)


@pytest.mark.proves("D.212")
@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "the request exceeds the available context size. try increasing the context size",
        "input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000",
    ],
)
async def test_a_prompt_that_does_not_fit_says_which_setting_helps(stage: Stage, said: str) -> None:
    error = await stage.fails(fails(400, message=said))
    assert (error.code, error.error_class) == ("prompt_too_long", ErrorClass.PERMANENT)
    assert "`context_tokens`" in error.hint


@pytest.mark.proves("D.212")
async def test_words_that_no_database_keeps_are_replaced(stage: Stage) -> None:
    error = await stage.fails(fails(400, message="Not \x00 this \ud800."))
    assert "Not � this ?." in error.message


@pytest.mark.proves("D.212")
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_an_address_where_nobody_answers_is_named(provider: str) -> None:
    async with anthropic_server() as gone:
        url = gone.url
    name = provider.upper()
    backends = Backends(keys=ProviderKeys(None, b"", {f"{name}_API_KEY": "k" * 20, f"{name}_BASE_URL": url}))
    with pytest.raises(ModelError) as caught:
        await Stage(gone, f"{provider}:m", backends).ask()
    assert caught.value.status is None
    assert caught.value.error_class is ErrorClass.INFRASTRUCTURE
    assert url in caught.value.message
    assert f"{name}_BASE_URL" in caught.value.hint
    await backends.close()


@pytest.mark.proves("D.212")
async def test_no_key_and_no_model_are_said_before_anything_is_asked(anthropic: Stage) -> None:
    nothing = Stage(anthropic.provider, "anthropic:m", Backends(keys=ProviderKeys(None, b"", {})))
    with pytest.raises(ModelError) as caught:
        await nothing.ask()
    assert (caught.value.code, caught.value.error_class) == ("no_model_key", ErrorClass.PERMANENT)
    assert "ANTHROPIC_API_KEY" in caught.value.hint
    assert "cortex model-key set anthropic" in caught.value.hint
    with pytest.raises(ModelError, match="names no model"):
        await anthropic.ask(model="anthropic:")
    assert anthropic.provider.asked == []


@pytest.mark.proves("D.212")
@pytest.mark.parametrize("url", ["nonsense", "ftp://example.com", "http://"])
def test_an_address_that_is_none_stops_the_worker_at_once(url: str) -> None:
    with pytest.raises(SetupError, match="OPENAI_BASE_URL is not valid"):
        ProviderKeys(None, b"", {"OPENAI_BASE_URL": url})


@pytest.mark.proves("D.212")
async def test_one_client_serves_all_calls_and_is_opened_again_after_the_end(stage: Stage) -> None:
    for _ in range(3):
        await stage.ask()
    assert len(stage.backends._clients._open) == 1
    await stage.backends.close()
    assert stage.backends._clients._open == {}
    assert (await stage.ask()).text == "done"


# What it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.217")
async def test_costs_come_from_the_list_and_unknown_ones_are_unknown() -> None:
    plain = ModelUsage(prompt_tokens=1_000_000, completion_tokens=0)
    cached = ModelUsage(prompt_tokens=1_000_000, completion_tokens=0, cache_read_tokens=1_000_000)
    dear = await cost_micros("anthropic:claude-sonnet-5", plain)
    cheap = await cost_micros("anthropic:claude-sonnet-5", cached)
    assert dear is not None
    assert cheap is not None
    assert 0 < cheap < dear / 5
    assert await cost_micros("openai:gpt-5.4-mini", plain)
    assert await cost_micros("openai:my-own-llama", plain) is None
    assert await cost_micros("scripted", plain) == 0
