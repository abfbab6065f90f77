"""The meters of this process. ``meters().requested(org_id, template)`` counts wherever something happens.

They belong to the process, so no function passes them on: bootstrap sets them, and until then nothing is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import UUID


class Meters:
    """What happened in this process, and the measures that say so. Counts nothing itself: subclasses keep the measures. Called after
    the commit; never waits, never fails. ``org_id`` is the only id that it takes: a figure for every session or approval would be
    one for nobody."""

    def count(self, measure: str, **labels: object) -> None:
        """One more."""

    def record(self, measure: str, seconds: float, **labels: object) -> None:
        """It took so long."""

    def paused(self, org_id: UUID, source: str) -> None:
        """A session was asked to pause, its job began to wait for a person, or the plane held it. ``source``: as its events say."""
        self.count("runtime_sessions_paused", tenant_id=org_id, pause_source=source)

    def suspended(self, org_id: UUID, seconds: float) -> None:
        """It stopped, so long after it was asked to."""
        self.record("runtime_pause_latency", seconds, tenant_id=org_id)

    def resumed(self, org_id: UUID, by: str) -> None:
        """What held it was lifted."""
        self.count("runtime_sessions_resumed", tenant_id=org_id, resumed_by=by)

    def woken(self, org_id: UUID, seconds: float) -> None:
        """It runs again, so long after it was resumed."""
        self.record("runtime_resume_latency", seconds, tenant_id=org_id)

    def requested(self, org_id: UUID, template: str) -> None:
        """A person is asked for an approval."""
        self.count("approval_requests", tenant_id=org_id, template=template)

    def joined(self, org_id: UUID) -> None:
        """An identical call joined a request that was there."""
        self.count("approval_dedup_hits", tenant_id=org_id)

    def decided(self, org_id: UUID, template: str, decision: str, channel: str, seconds: float) -> None:
        """An approval was approved or denied, so long after it was requested."""
        self.count("approval_decisions", tenant_id=org_id, decision=decision, channel=channel)
        self.record("approval_resolution", seconds, tenant_id=org_id, template=template)

    def expired(self, org_id: UUID, template: str) -> None:
        """Nobody decided in time."""
        self.count("approval_expiries", tenant_id=org_id, template=template)

    def ticked(self, seconds: float) -> None:
        """A scheduler looked for what is due, and did it."""
        self.record("approval_scheduler_tick_duration", seconds)

    def escalated(self, org_id: UUID, template: str, to_level: int) -> None:
        """More people are asked."""
        self.count("approval_escalations", tenant_id=org_id, template=template, to_level=to_level)

    def delegated(self, org_id: UUID) -> None:
        """Somebody handed their part in an approval to somebody else."""
        self.count("approval_delegations", tenant_id=org_id)

    def called_back(self, channel: str, result: str) -> None:
        """A decision came from outside: `ok`, `hmac_invalid`, `duplicate`, `conflict`, `expired_link`, `token_invalid` or `refused`."""
        self.count("approval_webhook_invocations", channel=channel, result=result)

    def corrupt(self, org_id: UUID, kind: str) -> None:
        """A job failed because its checkpoint cannot be trusted."""
        self.count("checkpoints_corrupt", tenant_id=org_id, corruption_type=kind)

    def forged(self, kind: str) -> None:
        """A row with a false MAC was refused."""
        self.count("forged_rows", kind=kind)

    def delivered(self, channel: str, result: str) -> None:
        """A message was sent (`ok`), will be tried again (`retry`), or was given up (`dead`)."""
        self.count("approval_deliveries", channel=channel, result=result)


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
