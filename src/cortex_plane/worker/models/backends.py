"""Which backend answers for the name of a model, what an answer costs, and the scripted model: no provider, no key, no cost."""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import orjson
from pydantic import ValidationError

from cortex_plane.agents.model import completions
from cortex_plane.jobs.model.usage import MICROS, is_scripted
from cortex_plane.kernel.fields import adapter
from cortex_plane.sessions.model.sessions import extract_of
from cortex_plane.tenancy.model.access import Provider
from cortex_plane.worker.models.credentials import Clients, ProviderKeys, missing
from cortex_plane.worker.models.providers import ProviderModel


class ModelBackend(Protocol):
    """Something that answers for a language model. Keeps nothing between two requests."""

    def stream(
        self, request: completions.ModelRequest
    ) -> AsyncIterator[completions.TextChunk | completions.ModelUsage | completions.Response]:
        """Any number of chunks, then exactly one response, last. Raises `ModelError`. A `ModelUsage` in between says what
        was counted so far: it is what counts where the answer breaks off."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Answering:
    """Who answers a request, and how people are told."""

    backend: ModelBackend
    model: str
    """By whose price list it is paid."""
    label: str | None
    """None for what needs no mention: the agent named it and it is scripted."""


class Backends:
    """``scripted`` and ``scripted:anything`` are answered by the backend called ``scripted``, ``anthropic:…`` and
    ``openai:…`` by their providers."""

    def __init__(self, more: Mapping[str, ModelBackend] | None = None, keys: ProviderKeys | None = None) -> None:
        """Without ``keys`` only the environment's are used."""
        self._clients = Clients()
        provider_keys = keys or ProviderKeys(None, b"")
        providers = {provider.value: ProviderModel(provider, provider_keys, self._clients) for provider in Provider}
        self._known: dict[str, ModelBackend] = {"scripted": ScriptedModel(), **providers, **(more or {})}

    def find(self, model: str) -> ModelBackend:
        backend = self._known.get(model) or self._known.get(model.partition(":")[0])
        if backend is None:
            names = ", ".join(f"`{name}`" for name in sorted(self._known))
            raise completions.ModelError(
                f"No backend answers for the model `{model}`; there is {names}.",
                code="unknown_model",
                hint="Name one of them in the agent's `model_config`, or add the backend to this worker.",
            )
        return backend

    async def answering(self, request: completions.ModelRequest) -> Answering:
        """The backend for a request; where there is no key, the agent's script if the agent says so."""
        backend = self.find(request.model)
        if not isinstance(backend, ProviderModel):
            return Answering(backend=backend, model=request.model, label=None)
        if await backend.has_key(request.org_id):
            await backend.prepare(request.model)
            return Answering(backend=backend, model=request.model, label=request.model)
        if request.settings.get("stand_in") != "script":
            raise missing(backend.provider, request.model)
        label = f"scripted (stand-in for {request.model})"
        return Answering(backend=self._known["scripted"], model="scripted", label=label)

    async def close(self) -> None:
        """Connections to providers; whoever asks again opens new ones."""
        await self._clients.close()


THE_END = "The script ends here."

_PLACEHOLDER = re.compile(r"\{(message|result)\}")
_WORDS = re.compile(r"(?<=\s)(?=\S)")


class ScriptedModel:
    async def stream(
        self, request: completions.ModelRequest
    ) -> AsyncIterator[completions.TextChunk | completions.Response]:
        due = answer(_script_of(request.settings), request)
        turn = due.turn
        if turn.delay_ms:
            await asyncio.sleep(turn.delay_ms / 1000)
        if turn.error_status is not None:
            raise completions.ModelError(
                f"The scripted model answered with status {turn.error_status}, as its script says.",
                status=turn.error_status,
                hint="Remove `error_status` from this turn of the script if that was not meant.",
            )
        for word in _WORDS.split(due.response.text or ""):
            if word:
                yield completions.TextChunk(word)
                if turn.chunk_delay_ms:
                    await asyncio.sleep(turn.chunk_delay_ms / 1000)
        yield due.response


def _script_of(settings: Mapping[str, Any]) -> tuple[completions.ScriptTurn, ...] | None:
    script = settings.get("script")
    if script is None:
        return None
    try:
        return _parse_script(orjson.dumps(script))
    except (TypeError, ValidationError) as error:
        raise completions.ModelError(
            f"The script of the scripted model is not valid: {error}",
            hint="Correct `model_config.script` of the agent.",
        ) from error


@functools.lru_cache(maxsize=32)
def _parse_script(script: bytes) -> tuple[completions.ScriptTurn, ...]:
    """A job asks once per step, and a long script costs far more to parse than to serialise."""
    return tuple(adapter(completions.Script).validate_json(script))


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedAnswer:
    response: completions.Response
    turn: completions.ScriptTurn
    """It says how long the answer takes, and whether it is an error."""


def answer(script: Sequence[completions.ScriptTurn] | None, request: completions.ModelRequest) -> ScriptedAnswer:
    """The turn that is due, its placeholders filled in. Without a script the model repeats what it hears."""
    if request.purpose == "summary":
        # No turn of the script is used up: it tells what the agent says, not what is remembered of it.
        prompt = next(turn.text for turn in request.turns if isinstance(turn, completions.UserTurn))
        summary = extract_of(prompt)
        usage = completions.ModelUsage(
            prompt_tokens=completions.tokens(len(prompt)), completion_tokens=completions.tokens(len(summary))
        )
        response = completions.Response(text=summary, calls=(), usage=usage, cost_micros=0)
        return ScriptedAnswer(response=response, turn=completions.ScriptTurn())
    words = _Words(request.turns)
    turn = _due(script, request.turn_index, words)
    text = None if turn.text is None else _fill(turn.text, words)
    calls = tuple(
        completions.CallRequest(
            id=f"call_{request.turn_index + 1}_{number}",
            name=completions.provider_name(call.tool),
            arguments=_fill(call.arguments, words) if call.raw_arguments is None else call.raw_arguments,
        )
        for number, call in enumerate(turn.calls, start=1)
    )
    usage = completions.ModelUsage(
        prompt_tokens=completions.tokens(completions.heard(request)),
        completion_tokens=completions.tokens(len(text or "") + completions.length_of_calls(calls)),
    )
    return ScriptedAnswer(response=completions.Response(text=text, calls=calls, usage=usage, cost_micros=0), turn=turn)


def _due(script: Sequence[completions.ScriptTurn] | None, turn_index: int, words: _Words) -> completions.ScriptTurn:
    if script is None:
        return completions.ScriptTurn(text="You said: {message}")
    if any(turn.said for turn in script):
        message = words["message"]
        script = [turn for turn in script if turn.said is None or turn.said in message]
    for index, turn in enumerate(script):
        if index == turn_index or turn.repeat:
            return turn
    return completions.ScriptTurn(text=THE_END)


@dataclass(frozen=True, slots=True)
class _Words:
    """What the placeholders stand for, looked for only where one is used: a conversation may be long."""

    turns: Sequence[completions.Turn]

    def __getitem__(self, name: str) -> str:
        turns = reversed(self.turns)
        if name == "message":
            inputs = (turn for turn in turns if isinstance(turn, completions.UserTurn) and not turn.by_operator)
            return next((turn.text for turn in inputs), "")
        results = (result for turn in turns if isinstance(turn, completions.ToolTurn) for result in turn.results[::-1])
        return next((result.content for result in results), "")


def _fill(value: Any, words: _Words) -> Any:
    """One pass: what a placeholder stands for is not searched for placeholders again."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: words[match[1]], value) if "{" in value else value
    if isinstance(value, dict):
        return {key: _fill(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, words) for item in value]
    return value


async def cost_micros(model: str, usage: completions.ModelUsage) -> int | None:
    """Millionths of a US dollar, rounded up; None where nobody knows. The list is large: it is read in a thread."""
    if is_scripted(model):
        return 0
    provider, _, name = model.partition(":")
    if not name:
        return None
    return await asyncio.to_thread(_cost, provider, name, usage)


def _cost(provider: str, name: str, usage: completions.ModelUsage) -> int | None:
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    counts = Counted(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        price: Decimal = calc_price(counts, name, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None
    return math.ceil(price * MICROS)
