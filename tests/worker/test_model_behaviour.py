"""The scripted model and both providers, each through the suite that every model passes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from cortex_plane.agents.model.completions import ModelError, ModelRequest, ModelUsage, Response, TextChunk, ToolTurn
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.models.credentials import ProviderKeys
from tests.providers import Answer, Asked, Provider, ToolUse, anthropic_server, openai_server, says
from tests.worker.model_behaviour import Counted, ModelStage, ModelSuite, Mood


class Moody:
    """The scripted model, with a provider's moods."""

    model = "scripted"

    def __init__(self) -> None:
        self.backends = Backends({"scripted": self})
        self._moods: list[Mood] = []
        self._asked: list[ModelRequest] = []
        self._heard_out = 0

    @property
    def requests(self) -> int:
        return len(self._asked)

    def teach(self, turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(turns)

    def mood(self, mood: Mood) -> None:
        self._moods.append(mood)

    def results(self, request: int) -> list[str]:
        turns = self._asked[request].turns
        return [each.content for turn in turns if isinstance(turn, ToolTurn) for each in turn.results]

    def gone(self) -> bool:
        return self._heard_out == len(self._asked)

    def counts(self, answers: int) -> Counted | None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | ModelUsage | Response]:
        self._asked.append(request)
        mood = self._moods.pop(0) if self._moods else Mood()
        try:
            if mood.status is not None:
                raise ModelError("not now", status=mood.status, retry_after=mood.retry_after)
            async for piece in ScriptedModel().stream(request):
                yield piece
                if mood.hold is not None:
                    await mood.hold.wait()
                if mood.cut:
                    raise ModelError("the connection is lost")
        finally:
            self._heard_out += 1


class ProviderStage:
    """A provider on loopback."""

    def __init__(self, provider: Provider, model: str, environment: dict[str, str]) -> None:
        self.model = model
        self.backends = Backends(keys=ProviderKeys(None, b"", environment))
        self._provider = provider
        self._moods: list[Mood] = []

    @property
    def requests(self) -> int:
        return len(self._provider.asked)

    def teach(self, turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        said = [_answer(turn) for turn in turns]

        def answer(asked: Asked) -> Answer:
            due = said[asked.turn] if asked.turn < len(said) else says("done")
            mood = self._moods.pop(0) if self._moods else Mood()
            if mood.status is not None:
                headers = {} if mood.retry_after is None else {"retry-after": str(mood.retry_after)}
                return Answer(status=mood.status, headers=headers)
            return replace(due, hold=mood.hold, cut=mood.cut)

        self._provider.answer = answer
        return []

    def mood(self, mood: Mood) -> None:
        self._moods.append(mood)

    def results(self, request: int) -> list[str]:
        found = []
        for message in self._provider.asked[request].body["messages"]:
            if message["role"] == "tool":
                found.append(message["content"])
            elif message["role"] == "user" and isinstance(message["content"], list):
                blocks = [block for block in message["content"] if block["type"] == "tool_result"]
                found += ["".join(part["text"] for part in block["content"]) for block in blocks]
        return found

    def gone(self) -> bool:
        return self._provider.lost == 1

    def counts(self, answers: int) -> Counted | None:
        return Counted(prompt_tokens=100 * answers, completion_tokens=20 * answers)


def _answer(turn: dict[str, Any]) -> Answer:
    return Answer(
        text=turn["text"],
        uses=tuple(
            ToolUse(call["tool"], call.get("raw_arguments") or json.dumps(call["arguments"])) for call in turn["calls"]
        ),
    )


class TestScripted(ModelSuite):
    @pytest.fixture
    def stage(self) -> ModelStage:
        return Moody()


class TestAnthropic(ModelSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[ModelStage]:
        async with anthropic_server() as provider:
            environment = {"ANTHROPIC_API_KEY": provider.key, "ANTHROPIC_BASE_URL": provider.url}
            yield ProviderStage(provider, "anthropic:claude-sonnet-5", environment)


class TestOpenAI(ModelSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[ModelStage]:
        async with openai_server() as provider:
            environment = {"OPENAI_API_KEY": provider.key, "OPENAI_BASE_URL": provider.url}
            yield ProviderStage(provider, "openai:gpt-5.4-mini", environment)
