"""What must be true after every crash: counted from the outside world's own log, and checked row by row in the plane."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, open_sealed
from cortex_plane.proof.verbs import audit
from tests.acceptance.test_campaign import INVARIANTS
from tests.crash.stage import Run, Stage
from tests.crash.tools import Kind, act_name


class Outcome(StrEnum):
    ONCE = "exactly once"
    ASKED = "asked, then once"
    FAILED = "failed as declared"
    NOT_BEGUN = "not begun"
    """After the job was given up, as declared."""
    NOT_SENT = "not sent, and said so"
    """The worker was held up again and again; the model was told."""
    REPEATED = "repeated"
    LOST = "lost"


@dataclass
class Table:
    """How the acts of a campaign ended, by the kind of their tool."""

    counts: dict[Kind, Counter[Outcome]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        for kind in Kind:
            if self.counts[kind]:
                said = ", ".join(f"{self.counts[kind][outcome]} {outcome}" for outcome in Outcome)
                lines.append(f"{kind:<13} {said}")
        return "\n".join([*lines, *self.faults])

    @property
    def clean(self) -> bool:
        bad = (Outcome.REPEATED, Outcome.LOST)
        return not self.faults and not any(counts[o] for counts in self.counts.values() for o in bad)


async def require_clean(stage: Stage) -> None:
    """The table is shown by `pytest -rP`, and when it is not clean."""
    table = await judged(stage)
    sys.stdout.write(f"{table}\n")
    assert table.clean, f"\n{table}"


async def judged(stage: Stage, runs: Sequence[Run] | None = None) -> Table:
    """Every act of every run, and every promise that is about rows."""
    runs = stage.runs if runs is None else runs
    table = Table()
    acts = Counter(act["payload"]["act"] for act in await stage.outside.log())
    ids = [run.job_id for run in runs]
    jobs = {
        row["id"]: row
        for row in await stage.rows(
            "select *, whole_checkpoint(checkpoint, memory)::text as blob from job where id = any ($1)", ids
        )
    }
    steps: dict[UUID, list[int]] = defaultdict(list)
    for row in await stage.rows("select job_id, step_index from step where job_id = any ($1) order by step_index", ids):
        steps[row["job_id"]].append(row["step_index"])
    calls: dict[UUID, list[Any]] = defaultdict(list)
    for row in await stage.rows("select * from tool_call where job_id = any ($1) order by step_index, position", ids):
        calls[row["job_id"]].append(row)
    for run in runs:
        for fault in _judge(stage, run, jobs[run.job_id], steps[run.job_id], calls[run.job_id], acts, table):
            table.faults.append(f"{run.kind} killed at {run.label}, job {run.job_id}: {fault}")
    for name, query in INVARIANTS.items():
        if await stage.rows(query):
            table.faults.append(name)
    table.faults += [str(fault) for fault in (await audit.verify(stage.world.db, stage.world.admin.actor)).faults]
    return table


def _judge(
    stage: Stage, run: Run, job: Any, steps: list[int], calls: list[Any], acts: Counter[str], table: Table
) -> list[str]:
    faults = []
    gave_up = run.kind is Kind.OR_FAIL and job["status"] == "FAILED"
    if job["status"] != "COMPLETED" and not gave_up:
        faults.append(f"ended {job['status']}: {job['error_message']}")
    if steps != list(range(len(steps))) or (not gave_up and len(steps) != (run.steps or len(steps))):
        faults.append(f"its steps are {steps}")
    if job["worker_id"] is not None or job["holds"]:
        faults.append(f"it ended, but is leased to {job['worker_id']} or held by {job['holds']}")
    open_calls = [call["status"] for call in calls if call["finished_at"] is None]
    if open_calls:
        faults.append(f"it ended with calls that are {open_calls}")
    try:
        key = stage.rescuer._host.vault.checkpoint_key(job["org_id"])
        open_sealed(job["blob"], mac=job["checkpoint_mac"], job_id=job["id"], agent_id=job["agent_id"], key=key)
    except CheckpointCorrupt as error:
        faults.append(f"its checkpoint: {error}")
    rows = {(c["step_index"], word): c for c in calls if (word := _word(c)) is not None}
    for step, word in run.acts:
        count, row = acts[act_name(run.job_id, step, word)], rows.get((step, word))
        outcome = _outcome(run, count, row, gave_up=gave_up)
        table.counts[run.kind][outcome] += 1
        if outcome in (Outcome.REPEATED, Outcome.LOST):
            faults.append(f"act {step}:{word} happened {count} times; its row: {dict(row) if row else None}")
    return faults


def _word(call: Any) -> str | None:
    word: str | None = orjson.loads(call["arguments"]).get("word")
    return word


def _outcome(run: Run, count: int, row: Any, *, gave_up: bool) -> Outcome:
    if count > 1:
        return Outcome.REPEATED
    if row is None:
        return Outcome.NOT_BEGUN if gave_up and count == 0 else Outcome.LOST
    if row["status"] == "failed" and row["error"].startswith("not sent") and count == 0:
        return Outcome.NOT_SENT
    if row["status"] == "failed" and gave_up:
        return Outcome.FAILED
    if row["status"] != "completed" or count == 0:
        return Outcome.LOST
    return Outcome.ASKED if row["id"] in run.asked else Outcome.ONCE
