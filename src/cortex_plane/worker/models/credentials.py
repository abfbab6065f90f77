"""The key with which a provider is asked, the org's own or the worker's, and the vendors' clients: imported at the first call."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import SetupError
from cortex_plane.tenancy.model.access import Provider
from cortex_plane.tenancy.verbs import keys
from cortex_plane.worker.limits import ticks

if TYPE_CHECKING:
    from pydantic_ai.models import Model


FRESH_SECONDS = 2.0
"""How long an org's key is taken for the one that it has: a removed one stops working after so long."""
MOST_REMEMBERED = 10_000

VARIABLES = {
    Provider.ANTHROPIC: ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    Provider.OPENAI: ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Credential:
    provider: Provider
    key: str = field(repr=False)
    base_url: str | None
    """Always the operator's: an org must not send the worker where it likes."""
    own: bool
    """The org's own."""

    @property
    def description(self) -> str:
        whose = "the org's own key" if self.own else f"the worker's {VARIABLES[self.provider][0]}"
        return f"{whose} (…{self.key[-4:]})" if len(self.key) >= 16 else whose

    def without(self, text: str) -> str:
        """Whatever a provider says, the key is not in it."""
        return text.replace(self.key, "…")


class ProviderKeys:
    def __init__(self, db: Database | None, master_key: bytes, environment: Mapping[str, str] | None = None) -> None:
        """Without ``db`` there are only the worker's own keys."""
        variables = os.environ if environment is None else environment
        self._db = db
        self._vault = Vault(master_key)
        self._workers = {provider: variables.get(key, "").strip() for provider, (key, _) in VARIABLES.items()}
        self._urls = {provider: _address(url, variables.get(url)) for provider, (_, url) in VARIABLES.items()}
        self._orgs: dict[tuple[UUID, Provider], tuple[float, str | None]] = {}

    async def find(self, provider: Provider, org_id: UUID | None) -> Credential | None:
        own = await self._own(provider, org_id)
        key = own or self._workers[provider]
        if not key:
            return None
        return Credential(provider=provider, key=key, base_url=self._urls[provider], own=own is not None)

    async def _own(self, provider: Provider, org_id: UUID | None) -> str | None:
        if self._db is None or org_id is None:
            return None
        read_at, key = self._orgs.get((org_id, provider), (None, None))
        if read_at is not None and ticks() - read_at < FRESH_SECONDS:
            return key
        if len(self._orgs) >= MOST_REMEMBERED:
            self._orgs.clear()
        asked_at = ticks()
        key = await keys.open_model_key(self._db, org_id, provider, self._vault)
        self._orgs[org_id, provider] = (asked_at, key)
        return key


def missing(provider: Provider, model: str) -> ModelError:
    variable = VARIABLES[provider][0]
    return ModelError(
        f"There is no key for the model `{model}`.",
        code="no_model_key",
        hint=(
            f"Start the workers with {variable}, set the org's own key with `cortex model-key set {provider}`,"
            ' or give the agent a script and `"stand_in": "script"` in its `model_config`.'
        ),
    )


def _address(variable: str, value: str | None) -> str | None:
    if value is None or not value.strip():
        return None
    parts = urlsplit(value.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(
            f"The setting {variable} is not valid: it must be an address such as https://models.example.com/v1.",
            code="invalid_setting",
            hint="Correct the environment variable; docs/reference/settings.md describes it.",
        )
    return value.strip()


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
            idle = [credential for credential, client in self._open.items() if client.users == 0]
            for unused in idle[: max(0, len(self._open) - MOST)]:
                await self._open.pop(unused).vendor.close()

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


def _vendor(credential: Credential) -> Any:
    """Its own retries are off: the plane's are durable, and seen."""
    import httpx2

    options: dict[str, Any] = {"api_key": credential.key, "base_url": credential.base_url, "max_retries": 0}
    options["timeout"] = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
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
        openai_chat_streaming_requires_finish_reason=True, openai_chat_supports_max_completion_tokens=own_address
    )
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=vendor), profile=profile)
