"""How a request to pause, resume, cancel or settle is answered on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from cortex_plane.cli.output import tell
from cortex_plane.jobs.model.jobs import TERMINAL, Job, SteeringResult
from cortex_plane.kernel.fields import to_json

if TYPE_CHECKING:
    from cortex_plane.jobs.model.jobs import SessionReceipt


def show_receipt(receipt: SteeringResult, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(receipt).decode() + "\n")
        return
    _tell_change(f"job {receipt.job.id} is {receipt.job.status}", receipt.changed)
    for line in job_standing(receipt.job):
        tell(f"  {line}")
    tell(f"  settled: {_call_count(receipt.settled)}")
    tell(f"  uncertain: {_call_count(receipt.uncertain)}{_advice(receipt)}")


def show_session_receipt(receipt: SessionReceipt, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(receipt).decode() + "\n")
        return
    held = "held" if receipt.session.held_at else "not held"
    _tell_change(f"session {receipt.session.id} is {held}", receipt.changed)
    if receipt.pending:
        tell("  pending: some of its jobs run to their next boundary")
    for job in receipt.jobs:
        tell("  " + ", ".join([f"job {job.id} is {job.status}", *job_standing(job)]))


def job_standing(job: Job) -> Iterator[str]:
    """What is asked of a job and not done yet, and what holds it."""
    if job.pending_cancel:
        yield "pending_cancel: running to its next boundary"
    if job.pending_pause:
        yield "pending_pause: running to its next boundary"
    if job.holds:
        yield f"held by {', '.join(job.holds)}"


def _tell_change(what: str, changed: bool) -> None:
    tell(what if changed else f"{what}; nothing changed")


def _call_count(calls: list[UUID]) -> str:
    if not calls:
        return "nothing"
    return f"{len(calls)} call{'s' if len(calls) > 1 else ''} ({', '.join(str(id) for id in calls)})"


def _advice(receipt: SteeringResult) -> str:
    if not receipt.uncertain:
        return ""
    if receipt.job.status in TERMINAL:
        return ": look at the outside world, it may have happened"
    return ": under way" if receipt.pending else f": see `cortex job questions {receipt.job.id}`"
