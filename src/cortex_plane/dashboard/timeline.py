"""A job's life as bars on one time axis: where it ran, where it waited for a person, and what gates did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.calls.model import Permissions
from cortex_plane.gates.rules.prompts import GateNews, news
from cortex_plane.jobs.model.jobs import TERMINAL, Job, JobChange, Step
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.model.sessions import BoundAtlas

WIDTH = 1000
"""Of the drawing, in its own units: it is stretched to the page."""
_LEAST = 4
GATE_ENTRIES = 100
"""Entries on a job's page, the newest."""


@dataclass(frozen=True, slots=True)
class GateEntry:
    news: GateNews
    seq: int
    at: datetime


@dataclass(frozen=True, slots=True)
class JobGates:
    """The atlases of a job's session, what their gates did, and what they allow now; empty where there are none."""

    atlases: Sequence[BoundAtlas] = ()
    entries: Sequence[GateEntry] = ()
    permissions: Permissions | None = None


def gate_entries(events: Sequence[Event]) -> list[GateEntry]:
    """The events about gates, in order."""
    pairs = ((news(event.type, event.data), event) for event in events)
    return [GateEntry(entry, event.seq, event.created_at) for entry, event in pairs if entry is not None]


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    label: str
    bars: list[Bar]
    link: str | None = None
    summary: str | None = None
    """Instead of the titles of its bars, which then are whole sentences."""


@dataclass(frozen=True, slots=True)
class Gantt:
    lanes: list[TimelineRow]
    begin: datetime
    end: datetime
    waited_seconds: float
    """For people, all together."""

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


def gantt(
    job: Job,
    history: Sequence[JobChange],
    steps: Sequence[Step],
    approvals: Sequence[Approval],
    now: datetime,
    gates: Sequence[GateEntry] = (),
) -> Gantt:
    begin = job.created_at
    end = max(job.finished_at or now, begin + timedelta(milliseconds=1))
    scale = WIDTH / (end - begin).total_seconds()

    def bar(start: datetime, stop: datetime, kind: str, title: str) -> Bar:
        x = min(max(0.0, (start - begin).total_seconds() * scale), WIDTH - _LEAST)
        width = max(_LEAST, min((stop - start).total_seconds() * scale, WIDTH - x))
        return Bar(round(x, 1), round(width, 1), kind, title)

    spans = _spans(job, history, end)
    lanes = [TimelineRow("Job", [bar(a, b, status, status) for status, a, b in spans])]
    lanes += [
        TimelineRow(f"Step {step.step_index + 1}", [bar(step.started_at, step.created_at, "step", "the model answers")])
        for step in steps
    ]
    if gates:
        ticks = [bar(entry.at, entry.at, f"gate-{entry.news.kind}", entry.news.line) for entry in gates]
        lanes.append(TimelineRow("Gates", ticks, "#gates", f"{len(ticks)} things that gates did"))
    lanes += [
        TimelineRow(
            approval.tool_name,
            [bar(approval.requested_at, approval.resolved_at or end, f"approval-{approval.status}", approval.status)],
            f"/approvals/{approval.id}",
        )
        for approval in sorted(approvals, key=lambda a: a.requested_at)
    ]
    seconds = sum((b - a).total_seconds() for status, a, b in spans if status == "WAITING_FOR_APPROVAL")
    return Gantt(lanes, begin, end, seconds)


def _spans(job: Job, history: Sequence[JobChange], end: datetime) -> list[tuple[str, datetime, datetime]]:
    """(status, from, to), in order; how it ended is no span of time."""
    points = [(str(change.new_status), change.created_at) for change in history] or [(str(job.status), job.created_at)]
    stops = [at for _, at in points[1:]] + [end]
    return [(status, at, stop) for (status, at), stop in zip(points, stops, strict=True) if status not in TERMINAL]
