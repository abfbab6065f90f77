"""The meters of this process. ``meters().requested(org_id, template)`` counts wherever something happens.

They belong to the process, so no function passes them on: bootstrap sets them, and until then nothing is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal
from uuid import UUID

PauseSource = Literal["operator", "approval", "policy"]
"""Who stops a session, and who lets it go on, in the words of spec 4."""


class Meters:
    """Counts nothing; subclasses count what happened in this process. Called after the commit; never waits, never
    fails. ``org_id`` is the only id that it takes: a figure for every session or approval would be one for nobody."""

    def paused(self, org_id: UUID, source: PauseSource) -> None:
        """A session was asked to pause, or its job began to wait for a person."""

    def suspended(self, org_id: UUID, seconds: float) -> None:
        """It stopped, so long after it was asked to."""

    def resumed(self, org_id: UUID, by: PauseSource) -> None:
        """What held it was lifted."""

    def woken(self, org_id: UUID, seconds: float) -> None:
        """It runs again, so long after it was resumed."""

    def requested(self, org_id: UUID, template: str) -> None:
        """A person is asked for an approval."""

    def joined(self, org_id: UUID) -> None:
        """An identical call joined a request that was there."""

    def decided(self, org_id: UUID, template: str, decision: str, channel: str, seconds: float) -> None:
        """An approval was approved or denied, so long after it was requested."""

    def expired(self, org_id: UUID, template: str) -> None:
        """Nobody decided in time."""

    def ticked(self, seconds: float) -> None:
        """A scheduler looked for what is due, and did it."""

    def escalated(self, org_id: UUID, template: str, to_level: int) -> None:
        """More people are asked."""

    def delegated(self, org_id: UUID) -> None:
        """Somebody handed their part in an approval to somebody else."""

    def called_back(self, channel: str, result: str) -> None:
        """A decision came from outside: `ok`, `hmac_invalid`, `duplicate`, `conflict` or `expired_link`."""

    def forged(self, kind: str) -> None:
        """A row with a false MAC was refused."""

    def delivered(self, channel: str, result: str) -> None:
        """A message was sent (`ok`), will be tried again (`retry`), or was given up (`dead`)."""


_in_use = Meters()


def meters() -> Meters:
    return _in_use


@contextlib.contextmanager
def metered(by: Meters) -> Iterator[None]:
    """Count with these for as long as the block runs."""
    global _in_use
    before, _in_use = _in_use, by
    try:
        yield
    finally:
        _in_use = before
