"""Real models, through the provider library: one streamed request each, and whatever comes of it in our words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from cortex_plane.agents.model.completions import ModelError, Request, Response, TextChunk, Usage
from cortex_plane.tenancy.model.credentials import Provider
from cortex_plane.worker.models.clients import Clients
from cortex_plane.worker.models.failures import as_model_error, incomplete, not_installed
from cortex_plane.worker.models.keys import Credential, Keys, missing
from cortex_plane.worker.models.messages import messages_of, parameters_of, response_of, usage_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.settings import ModelSettings

_CACHED = {
    # The prompt and the tools are the same in every step, and the conversation only grows: each step reads what the one
    # before it wrote. The other provider caches by itself.
    Provider.ANTHROPIC: {
        "anthropic_cache_instructions": True,
        "anthropic_cache_tool_definitions": True,
        "anthropic_cache_messages": True,
    },
    Provider.OPENAI: {},
}


class ProviderModel:
    """Every model of one provider: ``anthropic:…`` or ``openai:…``."""

    def __init__(self, provider: Provider, keys: Keys, clients: Clients) -> None:
        self.provider = provider
        self._keys, self._clients = keys, clients

    async def has_key(self, org_id: UUID | None) -> bool:
        return await self._keys.find(self.provider, org_id) is not None

    async def prepare(self, model: str) -> None:
        """Import what is needed, before anybody waits for words: it takes seconds the first time."""
        try:
            await self._clients.load(self.provider)
        except ImportError as error:
            raise not_installed(model, error) from error

    async def stream(self, request: Request) -> AsyncIterator[TextChunk | Usage | Response]:
        """A `Usage` says what was counted so far, for whoever does not hear the answer out."""
        credential = await self._keys.find(self.provider, request.org_id)
        if credential is None:
            raise missing(self.provider, request.model)
        name = request.model.partition(":")[2]
        if not name:
            raise ModelError(
                f"`{request.model}` names no model.",
                code="unknown_model",
                hint=f"Name one in the agent's `model_config`, as in `{self.provider}:MODEL`.",
            )
        try:
            async with self._clients.model(credential, name) as model:
                async for piece in _spoken(model, request, credential):
                    yield piece
        except ModelError:
            raise
        except Exception as error:
            # Whatever the library or the vendor's client makes of a broken answer.
            raise as_model_error(error, request.model, credential) from error


async def _spoken(
    model: Model[Any], request: Request, credential: Credential
) -> AsyncIterator[TextChunk | Usage | Response]:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    counted: Usage | None = None
    async with model_request_stream(
        model,
        messages_of(request, marks_errors=credential.provider is Provider.ANTHROPIC),
        model_settings=_settings(request, credential.provider),
        model_request_parameters=parameters_of(request),
        instrument=False,
    ) as stream:
        async for event in stream:
            if counted is None and stream.usage.input_tokens:
                counted = usage_of(stream.usage)
                yield counted
            text = ""
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                text = event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                text = event.delta.content_delta
            if text:
                yield TextChunk(text)
        if not _complete(stream, credential):
            raise incomplete(request.model, credential)
        yield response_of(request.model, stream.get())


def _complete(stream: StreamedResponse, credential: Credential) -> bool:
    """Whether the provider said why it stops, also where that is news to the library, which for the other one looks itself."""
    return credential.provider is not Provider.ANTHROPIC or bool(
        (stream.provider_details or {}).get("finish_reason")
    )


def _settings(request: Request, provider: Provider) -> ModelSettings:
    given: dict[str, Any] = dict(_CACHED[provider])
    if request.temperature is not None:
        given["temperature"] = request.temperature
    if request.max_tokens is not None:
        given["max_tokens"] = request.max_tokens
    return cast("ModelSettings", given)
