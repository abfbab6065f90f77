"""The frame of every verb: permission, idempotency, revisions."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import NotFound, Stale
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import After
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.orgs import Org

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Verb(Protocol[P, T_co]):
    """An operation that knows which permission it asks for, so that surfaces can say so without repeating it."""

    permission: Permission
    heavy: bool
    """It reads long spans: few of them run at a time."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T_co]: ...


def verb(
    permission: Permission, *, heavy: bool = False
) -> Callable[[Callable[Concatenate[Database, Actor, P], Awaitable[T]]], Verb[Concatenate[Database, Actor, P], T]]:
    """Refuse the actor before anything is read. A ``heavy`` verb is also refused while too many of them run."""

    def decorate(
        operation: Callable[Concatenate[Database, Actor, P], Awaitable[T]],
    ) -> Verb[Concatenate[Database, Actor, P], T]:
        @functools.wraps(operation)
        async def guarded(db: Database, actor: Actor, *args: P.args, **kwargs: P.kwargs) -> T:
            actor.require(permission)
            if not heavy:
                return await operation(db, actor, *args, **kwargs)
            with db.heavy_read(actor.org_id):
                return await operation(db, actor, *args, **kwargs)

        guarded.permission, guarded.heavy = permission, heavy  # type: ignore[attr-defined]
        return guarded  # type: ignore[return-value]

    return decorate


def transaction_verb(
    permission: Permission,
) -> Callable[[Callable[Concatenate[Transaction, Actor, P], Awaitable[T]]], Verb[Concatenate[Database, Actor, P], T]]:
    """A verb whose operation gets a transaction of the actor's org instead of the database."""

    def decorate(
        operation: Callable[Concatenate[Transaction, Actor, P], Awaitable[T]],
    ) -> Verb[Concatenate[Database, Actor, P], T]:
        @verb(permission)
        @functools.wraps(operation)
        async def transacted(db: Database, actor: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
            async with db.transaction(actor.org_id) as tx:
                return await operation(tx, actor, *args, **kwargs)

        return transacted

    return decorate


def read_verb(
    permission: Permission, read: Callable[Concatenate[Transaction, P], Awaitable[T]]
) -> Verb[Concatenate[Database, Actor, P], T]:
    """A verb that returns what one function of a store reads."""

    @transaction_verb(permission)
    async def operation(tx: Transaction, _: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await read(tx, *args, **kwargs)

    return operation


def get_verb(
    permission: Permission, read: Callable[Concatenate[Transaction, P], Awaitable[T | None]], noun: str
) -> Verb[Concatenate[Database, Actor, P], T]:
    """The same for one record, which must exist."""

    @transaction_verb(permission)
    async def operation(tx: Transaction, _: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return require_found(await read(tx, *args, **kwargs), noun)

    return operation


async def every_org(db: Database) -> AsyncIterator[Org]:
    """Newest first, for the duties of the whole plane."""
    position: After = None
    while True:
        page = await tenancy_store.list_orgs(db, position, 100)
        for org in page.items:
            yield org
        if page.next is None:
            return
        position = page.next


def require_found(thing: T | None, noun: str) -> T:
    """The thing, or the same answer for "none" and for "another org's"."""
    if thing is None:
        raise NotFound(f"There is no such {noun}.", code=f"{noun}_not_found")
    return thing


def require_revision(current: int, expected: int | None) -> None:
    if expected is not None and expected != current:
        raise Stale(f"It has changed: you saw revision {expected}, it is now at {current}.")


async def record(tx: Transaction, actor: Actor, action: str, **details: Any) -> None:
    """Append an entry to the audit trail of the org: the last statement of a verb."""
    await proof_store.append_to_org(tx, Fact.of(actor, action, **details))


async def once_only(
    tx: Transaction, actor: Actor, name: str, once: IdempotencyKey | None, make: Callable[[], Awaitable[UUID]]
) -> tuple[UUID, bool]:
    """Run ``make`` unless this idempotency key has already done so; returns the id and whether it is an earlier one."""
    if once is None:
        return await make(), False
    earlier: dict[str, Any] | None = await tenancy_store.claim_idempotency_key(tx, actor.key_id, name, once)
    if earlier is not None:
        return UUID(earlier["id"]), True
    id = await make()
    await tenancy_store.settle_idempotency_key(tx, actor.key_id, name, once, {"id": str(id)})
    return id, False
