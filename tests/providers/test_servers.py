"""The vendors' own clients take these servers for the real ones: what they accept, ours must be able to read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.providers import Answer, anthropic_server, call, calls, fails, openai_server, says

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.mark.proves("D.211")
async def test_anthropics_own_client_reads_text_thinking_calls_and_usage() -> None:
    from anthropic import AsyncAnthropic

    async with anthropic_server() as provider:
        client = AsyncAnthropic(api_key=provider.key, base_url=provider.url, max_retries=0)
        provider.say(
            says("Hello out there, my friend.", thinking="hm", cache_read_tokens=7, cache_write_tokens=3),
            calls(call("ship", to="Ada"), call("look"), text="I do."),
        )
        async with client.messages.stream(model="claude-sonnet-5", max_tokens=10, messages=HELLO) as stream:
            said = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
        assert len(said) > 1
        assert "".join(said) == "Hello out there, my friend."
        assert [block.type for block in message.content] == ["thinking", "text"]
        counted = message.usage
        assert (counted.input_tokens, counted.output_tokens) == (100, 20)
        assert (counted.cache_read_input_tokens, counted.cache_creation_input_tokens) == (7, 3)
        whole = await client.messages.create(model="claude-sonnet-5", max_tokens=10, messages=HELLO)
        assert whole.stop_reason == "tool_use"
        uses = [block for block in whole.content if block.type == "tool_use"]
        assert [(use.name, use.input) for use in uses] == [("ship", {"to": "Ada"}), ("look", {})]
        await client.close()


@pytest.mark.proves("D.211")
async def test_anthropics_own_client_knows_each_failure() -> None:
    import anthropic
    import httpx2

    async with anthropic_server() as provider:
        client = anthropic.AsyncAnthropic(api_key=provider.key, base_url=provider.url, max_retries=0)

        async def ask() -> Any:
            async with client.messages.stream(model="m", max_tokens=10, messages=HELLO) as stream:
                return await stream.get_final_message()

        provider.say(
            fails(429, 7),
            fails(529),
            says("Said in several pieces, and lost.", cut=True),
            Answer(refusal="I will not."),
            says("cut off", truncated=True),
        )
        with pytest.raises(anthropic.RateLimitError) as limited:
            await ask()
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            await ask()
        assert overloaded.value.status_code == 529
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask()
        assert (await ask()).stop_reason == "refusal"
        assert (await ask()).stop_reason == "max_tokens"
        stranger = anthropic.AsyncAnthropic(api_key="sk-somebody", base_url=provider.url, max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model="m", max_tokens=10, messages=HELLO)
        with pytest.raises(anthropic.BadRequestError, match="first message"):
            await client.messages.create(
                model="m", max_tokens=10, messages=[{"role": "assistant", "content": "I begin."}]
            )
        await client.close()
        await stranger.close()


@pytest.mark.proves("D.211")
async def test_openais_own_client_reads_text_calls_and_usage() -> None:
    from openai import AsyncOpenAI

    async with openai_server() as provider:
        client = AsyncOpenAI(api_key=provider.key, base_url=provider.url, max_retries=0)
        provider.say(
            says("Hello out there, my friend.", cache_read_tokens=7), calls(call("ship", to="Ada"), call("look"))
        )
        async with client.chat.completions.stream(
            model="gpt-5", messages=HELLO, stream_options={"include_usage": True}
        ) as stream:
            done = await stream.get_final_completion()
        assert done.choices[0].message.content == "Hello out there, my friend."
        assert done.usage is not None
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (107, 20)
        assert done.usage.prompt_tokens_details is not None
        assert done.usage.prompt_tokens_details.cached_tokens == 7
        async with client.chat.completions.stream(model="gpt-5", messages=HELLO) as stream:
            done = await stream.get_final_completion()
        made = [each.function for each in done.choices[0].message.tool_calls or ()]
        assert [(each.name, each.arguments) for each in made] == [("ship", '{"to": "Ada"}'), ("look", "{}")]
        assert done.choices[0].finish_reason == "tool_calls"
        await client.close()


@pytest.mark.proves("D.211")
async def test_openais_own_client_knows_each_failure() -> None:
    import openai

    async with openai_server() as provider:
        client = openai.AsyncOpenAI(api_key=provider.key, base_url=provider.url, max_retries=0)

        async def ask() -> Any:
            async with client.chat.completions.stream(model="gpt-5", messages=HELLO) as stream:
                return (await stream.get_final_completion()).choices[0]

        provider.say(
            fails(429, 7), fails(503), says("Said in several pieces, and lost.", cut=True),
            Answer(refusal="I will not."),
        )  # fmt: skip
        with pytest.raises(openai.RateLimitError) as limited:
            await ask()
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.InternalServerError):
            await ask()
        with pytest.raises(openai.APIConnectionError):
            await ask()
        assert (await ask()).message.refusal == "I will not."
        stranger = openai.AsyncOpenAI(api_key="sk-somebody", base_url=provider.url, max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model="gpt-5", messages=HELLO)
        dangling: list[Any] = [*HELLO, {"role": "tool", "tool_call_id": "x", "content": "1"}]
        with pytest.raises(openai.BadRequestError, match="must answer"):
            await client.chat.completions.create(model="gpt-5", messages=dangling)
        await client.close()
        await stranger.close()


@pytest.mark.proves("D.211")
async def test_a_reader_that_leaves_is_noticed() -> None:
    from anthropic import AsyncAnthropic

    async with anthropic_server() as provider:
        client = AsyncAnthropic(api_key=provider.key, base_url=provider.url, max_retries=0)
        provider.say(says("Said in several pieces, and never ended.", hold=asyncio.Event()))
        async with client.messages.stream(model="m", max_tokens=10, messages=HELLO) as stream:
            await anext(aiter(stream.text_stream))
        async with asyncio.timeout(20):
            while provider.lost == 0:  # noqa: ASYNC110 -- it is another task that notices
                await asyncio.sleep(0.01)
        await client.close()
