"""The vendors' own clients, one for each key and address, made at the first call: importing them takes seconds."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cortex_plane.tenancy.model.credentials import Provider
from cortex_plane.worker.models.keys import Credential

if TYPE_CHECKING:
    from pydantic_ai.models import Model

MOST = 256
"""Clients that are kept; of those beyond it, the longest unused go."""
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 3600.0
"""The agent's own limits end a call long before."""

_MODULES = {
    Provider.ANTHROPIC: ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
    Provider.OPENAI: ("pydantic_ai.models.openai", "pydantic_ai.providers.openai"),
}


@dataclass(eq=False, slots=True)
class _Client:
    vendor: Any
    models: dict[str, Model[Any]] = field(default_factory=dict)
    users: int = 0


class Clients:
    def __init__(self) -> None:
        self._open: dict[Credential, _Client] = {}
        self._importing = {provider: asyncio.Lock() for provider in Provider}
        self._imported: set[Provider] = set()

    @asynccontextmanager
    async def model(self, credential: Credential, name: str) -> AsyncIterator[Model[Any]]:
        """A model to ask, whose client stays open meanwhile."""
        await self.load(credential.provider)
        client = self._open.pop(credential, None) or _Client(_vendor(credential))
        self._open[credential] = client
        client.users += 1
        try:
            if name not in client.models:
                client.models[name] = _model(credential, client.vendor, name)
            yield client.models[name]
        finally:
            client.users -= 1
            await self._trim()

    async def close(self) -> None:
        while self._open:
            _, client = self._open.popitem()
            with contextlib.suppress(Exception):
                await client.vendor.close()

    async def load(self, provider: Provider) -> None:
        """In a thread: a worker that stops for seconds would lose its jobs."""
        async with self._importing[provider]:
            if provider not in self._imported:
                for module in ("pydantic_ai.direct", *_MODULES[provider]):
                    await asyncio.to_thread(importlib.import_module, module)
                self._imported.add(provider)

    async def _trim(self) -> None:
        unused = [credential for credential, client in self._open.items() if client.users == 0]
        for credential in unused[: max(0, len(self._open) - MOST)]:
            await self._open.pop(credential).vendor.close()


def _vendor(credential: Credential) -> Any:
    """Its own retries are off: the plane's are durable, and seen."""
    import httpx2

    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    options: dict[str, Any] = {
        "api_key": credential.key,
        "base_url": credential.base_url,
        "max_retries": 0,
        "timeout": timeout,
    }
    if credential.provider is Provider.ANTHROPIC:
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(**options)
    from openai import AsyncOpenAI

    client = AsyncOpenAI(**options)
    if credential.own:
        # The worker's account is not the org's.
        client.organization = client.project = None
    return client


def _model(credential: Credential, vendor: Any, name: str) -> Model[Any]:
    if credential.provider is Provider.ANTHROPIC:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=vendor))
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    # Without the last word nobody knows whether an answer is whole. Compatible servers know the older name of the limit.
    own_address = credential.base_url is None or urlsplit(credential.base_url).hostname == "api.openai.com"
    profile = OpenAIModelProfile(
        openai_chat_streaming_requires_finish_reason=True,
        openai_chat_supports_max_completion_tokens=own_address,
    )
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=vendor), profile=profile)
