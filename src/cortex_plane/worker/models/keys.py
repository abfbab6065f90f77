"""With which key a provider is asked: the org's own, or else the worker's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import SetupError
from cortex_plane.tenancy.model.credentials import Provider
from cortex_plane.tenancy.verbs import keys
from cortex_plane.worker.clock import ticks

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
    def named(self) -> str:
        whose = "the org's own key" if self.own else f"the worker's {VARIABLES[self.provider][0]}"
        return f"{whose} (…{self.key[-4:]})" if len(self.key) >= 16 else whose

    def without(self, text: str) -> str:
        """Whatever a provider says, the key is not in it."""
        return text.replace(self.key, "…")


class Keys:
    def __init__(
        self, db: Database | None, master_key: bytes, environment: Mapping[str, str] | None = None
    ) -> None:
        """Without ``db`` there are only the worker's own keys."""
        given = os.environ if environment is None else environment
        self._db = db
        self._vault = Vault(master_key)
        self._workers = {provider: given.get(key, "").strip() for provider, (key, _) in VARIABLES.items()}
        self._urls = {provider: _address(url, given.get(url)) for provider, (_, url) in VARIABLES.items()}
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


def _address(variable: str, given: str | None) -> str | None:
    if given is None or not given.strip():
        return None
    parts = urlsplit(given.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(
            f"The setting {variable} is not valid: it must be an address such as https://models.example.com/v1.",
            code="invalid_setting",
            hint="Correct the environment variable; docs/reference/settings.md describes it.",
        )
    return given.strip()
