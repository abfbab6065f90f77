"""The scripted model behind the port that every model has, and the choice of a backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cortex_plane.agents.model.completions import CallRequest, ModelError, ModelRequest, Response, TextChunk, UserTurn
from cortex_plane.worker.models.backends import Backends, ModelBackend, ScriptedModel


def _request(script: Any = None, message: str = "Hi", index: int = 0) -> ModelRequest:
    return ModelRequest(
        model="scripted", system_prompt=None, turns=[UserTurn(message)], tools=[], temperature=None,
        max_tokens=None, settings={"model": "scripted", "script": script}, turn_index=index,
    )  # fmt: skip


async def _all(request: ModelRequest) -> list[TextChunk | Response]:
    return [part async for part in ScriptedModel().stream(request)]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waits


@pytest.mark.parametrize("text", ["One", "One two  three.\n\nFour ", "  x", " ", "{message} {message}"])
async def test_the_chunks_are_the_text_and_the_response_comes_last(text: str) -> None:
    *chunks, last = await _all(_request([{"text": text}], message="a b"))
    assert isinstance(last, Response)
    assert all(isinstance(chunk, TextChunk) and chunk.text for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == last.text


async def test_words_are_chunks() -> None:
    assert (await _all(_request([{"text": "One two  three."}])))[:-1] == [
        TextChunk("One "), TextChunk("two  "), TextChunk("three."),
    ]  # fmt: skip


async def test_calls_come_with_the_response_alone() -> None:
    (only,) = await _all(_request([{"calls": [{"tool": "a.b", "arguments": {"x": "{message}"}}]}]))
    assert isinstance(only, Response)
    assert only.text is None
    assert only.calls == (CallRequest(id="call_1_1", name="a_b", arguments={"x": "Hi"}),)


async def test_an_empty_turn_is_an_empty_response() -> None:
    (only,) = await _all(_request([{}]))
    assert isinstance(only, Response)
    assert (only.text, only.calls, only.usage.completion_tokens) == (None, (), 0)


async def test_without_a_script_it_repeats_what_it_hears() -> None:
    last = (await _all(_request()))[-1]
    assert isinstance(last, Response)
    assert last.text == "You said: Hi"


async def test_delays_are_kept(slept: list[float]) -> None:
    await _all(_request([{"text": "One two", "delay_ms": 1500, "chunk_delay_ms": 20}]))
    assert slept == [1.5, 0.02, 0.02]


async def test_an_error_comes_after_the_delay_every_time(slept: list[float]) -> None:
    request = _request([{"text": "Never said", "error_status": 529, "delay_ms": 1000}])
    for _ in range(2):
        with pytest.raises(ModelError, match="status 529") as caught:
            await _all(request)
        assert (caught.value.status, caught.value.code) == (529, "model_error")
    assert slept == [1.0, 1.0]


@pytest.mark.parametrize("script", [[{"txt": 1}], "text", {}, [object()], [{"text": "\ud800"}]])
async def test_a_script_that_is_none_is_a_model_error(script: Any) -> None:
    with pytest.raises(ModelError, match="script of the scripted model is not valid") as caught:
        await _all(_request(script))
    assert caught.value.status is None
    assert "model_config.script" in caught.value.hint


async def test_another_instance_goes_on_where_the_first_stopped() -> None:
    script = [{"text": "One"}, {"text": "Two"}]
    said = [(await _all(_request(script, index=index)))[-1] for index in (0, 1)]
    assert [part.text for part in said] == ["One", "Two"]


def test_the_name_before_the_colon_chooses_the_backend() -> None:
    class Other:
        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            yield TextChunk(request.model)

    other: ModelBackend = Other()
    backends = Backends({"other": other, "local:small": other})
    assert isinstance(backends.find("scripted"), ScriptedModel)
    assert backends.find("scripted:v2:x") is backends.find("scripted")
    assert backends.find("other:large") is other
    assert backends.find("local:small") is other


@pytest.mark.parametrize("model", ["gpt", "", ":scripted", "Scripted", "scripted-2", "local:small"])
def test_an_unknown_model_is_named_with_those_that_are_known(model: str) -> None:
    with pytest.raises(ModelError) as caught:
        Backends({"other": ScriptedModel()}).find(model)
    assert (caught.value.code, caught.value.status) == ("unknown_model", None)
    assert f"`{model}`" in caught.value.message
    assert "`other`, `scripted`" in caught.value.message
    assert caught.value.hint
