"""The orgs' own keys for model providers in SQL: sealed, and opened only by whoever asks the provider."""

from __future__ import annotations

from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import one
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.model_keys import ModelKey, Provider

queries = Queries(__file__)


def _purpose(provider: Provider) -> str:
    """What a key is sealed for: it opens for nothing else."""
    return f"model key {provider.value}"


async def list_all(tx: Transaction) -> list[ModelKey]:
    return [parse(ModelKey, row) for row in await tx.rows(queries.list_all)]


async def get(tx: Transaction, provider: Provider) -> ModelKey | None:
    return one(ModelKey, await tx.row(queries.get, provider))


async def put(tx: Transaction, vault: Vault, provider: Provider, key: str, set_by: str) -> ModelKey:
    sealed = vault.seal(tx.org, _purpose(provider), key.encode())
    (row,) = await tx.rows(queries.put, tx.org, provider, sealed, key[-4:], set_by)
    return parse(ModelKey, row)


async def remove(tx: Transaction, provider: Provider) -> bool:
    return await tx.value(queries.remove, provider) is not None


async def opened(tx: Transaction, vault: Vault, provider: Provider) -> str | None:
    """The key itself."""
    sealed: bytes | None = await tx.value(queries.opened, provider)
    return None if sealed is None else vault.open(tx.org, _purpose(provider), sealed).decode()
