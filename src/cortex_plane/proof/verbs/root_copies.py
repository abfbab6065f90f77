"""Copying signed roots to places outside of the database, by whichever process made them, after its commit.

A place says how far it got, so what one process could not write the next look writes again. The places are the process's, as
meters are: bootstrap puts them in place, and until it does nothing is copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.proof.rules.root_copies import RootCopy, RootMark
from cortex_plane.proof.store import roots
from cortex_plane.tenancy.store import orgs


class RootPlace(Protocol):
    """Somewhere outside of the database that keeps copies of signed roots."""

    name: str
    begins_with_the_newest: bool
    """Of an org that it does not know it wants the newest root alone, and not all there are."""

    async def last(self, org_id: UUID) -> RootMark | None:
        """How far it got with this org."""

    async def add(self, copies: Sequence[RootCopy]) -> None:
        """Roots of one org in their order. What is there already stays as it is."""


log = structlog.get_logger()

AT_ONCE = 100
"""Roots of one org in one look: what is left over comes with the next one."""

_places: Sequence[RootPlace] = ()


@contextlib.contextmanager
def copied_to(places: Sequence[RootPlace]) -> Iterator[None]:
    """Copy roots to these places for as long as the block runs."""
    global _places
    before, _places = _places, places
    try:
        yield
    finally:
        _places = before


async def copy(db: Database, org_id: UUID) -> None:
    """Everything that a place does not have yet. A place that fails is logged: the root itself is made."""
    for place in _places:
        try:
            await _copy_to(place, db, org_id)
        except Exception as error:
            log.warning(
                "root not copied", place=place.name, org_id=str(org_id), error=str(error) or repr(error)
            )


async def copy_all(db: Database) -> None:
    """The roots of every org, where a process ended between its commit and the copy."""
    if not _places:
        return
    position = None
    while True:
        page = await orgs.list_all(db, position, 100)
        for org in page.items:
            await copy(db, org.id)
        if page.next is None:
            return
        position = page.next


async def _copy_to(place: RootPlace, db: Database, org_id: UUID) -> None:
    last = await place.last(org_id)
    async with db.transaction(org_id, snapshot=True) as tx:
        if last is None and place.begins_with_the_newest:
            found = await roots.newest(tx)
        else:
            known = last is not None and last.hash is not None
            found = await roots.above(tx, (last.seq - known) if last else 0, AT_ONCE + known)
    if last is not None and last.hash is not None:
        # The place keeps what it has: whoever verifies compares it with the roots that are here now.
        if not found or (found[0].seq, found[0].hash) != (last.seq, last.hash):
            log.error(
                "roots do not go on from their copy", place=place.name, org_id=str(org_id), root=last.seq
            )
            return
        found = found[1:]
    if found:
        await place.add(found)
