"""How a request to pause, resume, cancel or settle is answered on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from cortex_plane.cli.output import count_text, print_line
from cortex_plane.jobs.model.jobs import TERMINAL, Job, SessionReceipt, SteeringResult


def show_receipt(receipt: SteeringResult) -> None:
    _show_change(f"job {receipt.job.id} is {receipt.job.status}", receipt.changed)
    for line in job_standing(receipt.job):
        print_line(f"  {line}")
    print_line(f"  settled: {_call_count(receipt.settled)}")
    print_line(f"  uncertain: {_call_count(receipt.uncertain)}{_advice(receipt)}")


def show_session_receipt(receipt: SessionReceipt) -> None:
    state = "held" if receipt.session.held_at else "not held"
    _show_change(f"session {receipt.session.id} is {state}", receipt.changed)
    if receipt.pending:
        print_line("  pending: some of its jobs run to their next boundary")
    for job in receipt.jobs:
        print_line("  " + ", ".join([f"job {job.id} is {job.status}", *job_standing(job)]))


def job_standing(job: Job) -> Iterator[str]:
    """Requests that a job has not followed yet, and what holds it."""
    if job.pending_cancel:
        yield "pending_cancel: running to its next boundary"
    if job.pending_pause:
        yield "pending_pause: running to its next boundary"
    if job.holds:
        yield f"held by {', '.join(job.holds)}"


def _show_change(what: str, changed: bool) -> None:
    print_line(what if changed else f"{what}; nothing changed")


def _call_count(calls: list[UUID]) -> str:
    return f"{count_text(len(calls), 'call')} ({', '.join(map(str, calls))})" if calls else "nothing"


def _advice(receipt: SteeringResult) -> str:
    if not receipt.uncertain:
        return ""
    if receipt.job.status in TERMINAL:
        return ": look at the outside world, it may have happened"
    return ": under way" if receipt.pending else f": see `cortex job questions {receipt.job.id}`"
