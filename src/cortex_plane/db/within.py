"""A database whose every verb is a part of one transaction that somebody else opened, with the locks that it has."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction

T = TypeVar("T")


class NestedDatabase(Database):
    """What is a transaction elsewhere is a savepoint here: it is undone by itself where it fails, and never needs a second
    connection."""

    def __init__(self, db: Database, tx: Transaction) -> None:
        self._vault = db.vault_at_hand
        self._credential_key = db.credential_key_at_hand
        self._tx = tx
        self.hints = db.hints

    @contextlib.asynccontextmanager
    async def transaction(self, org: UUID, *, snapshot: bool = False) -> AsyncIterator[Transaction]:
        if org != self._tx.org or snapshot:
            raise AssertionError("a part of a transaction sees what it sees")
        async with self._tx.part():
            yield self._tx

    async def call(self, name: str, org: UUID | None, *args: Any) -> Sequence[Row]:
        async with self._tx.part():
            return await self._tx.call(name, org, *args)


class NotAtHand(Exception):
    """Under locks nothing is loaded: they are given back, it is loaded, and whoever needs it begins again."""

    def __init__(self, load: Callable[[Database], Awaitable[object]]) -> None:
        super().__init__("what is needed is not loaded")
        self.load = load


async def at_hand(db: Database, known: T | None, load: Callable[[Database], Awaitable[T]]) -> T:
    if known is not None:
        return known
    if isinstance(db, NestedDatabase):
        raise NotAtHand(load)
    return await load(db)
