"""Killed at each commit between a question and its answer: the job goes on at the question, nothing gated happens without its
pass, and what a call used up it used up once."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest

from cortex_plane.gates.model.gates import state_of
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.proof.verbs import audit
from tests.acceptance.test_campaign import INVARIANTS
from tests.crash.points import apart, each, extents, from_the_claim_on, name, worth_a_try
from tests.crash.stage import Run, Stage
from tests.crash.tools import Kind, act_name
from tests.fixtures.atlases import publish
from tests.fixtures.gated import atlas, before, gate, question, say
from tests.fixtures.workers import call, make_agent, turn

ACT = call(Kind.WITH_KEY, word="a")
SCRIPT = [
    turn(call("look", at="here"), ACT, text="I act."),
    turn(say("terms", agree=True), ACT),
    turn(ACT, call("look", at="here")),
    turn(say("sure", sure="understood")),
    turn(ACT),
    turn(ACT),
    turn(call("look", at="a"), call(Kind.PROBED, word="b"), call("look", at="b"), call(Kind.PROBED, word="c")),
]
ACTS = ((4, "a"), (6, "b"), (6, "c"))
MANIFEST = atlas(
    gate("terms", "session_start", questions=[question("agree")]),
    gate("sure", before("act_with_key"), force_sync_trace=True),
    gate("hint", before("look", "act_probed"), mode="advisory", guidance={"content": "Mind the step."}),
    gate("noted", before("look", "act_probed"), mode="observational"),
    gate("seen", {"type": "action_post", "patterns": ["act_*"]}, mode="observational"),
    policies=[
        {"policy_id": "few", "type": "budget", "actions": ["act_*"], "max_calls": 5},
        {"policy_id": "all", "type": "allow", "actions": ["*"]},
    ],
)
STATUSES = [
    "rejected",
    "rejected",
    "completed",
    "rejected",
    "rejected",
    "completed",
    "completed",
    "completed",
    "rejected",
    *["completed"] * 4,
]
TRACE = Counter(
    {
        "checkpoint_triggered terms": 1, "checkpoint_response terms": 1, "checkpoint_passed terms": 1,
        "checkpoint_blocked terms": 4,
        "checkpoint_triggered sure": 2, "checkpoint_response sure": 1, "checkpoint_passed sure": 1,
        "checkpoint_blocked sure": 2, "checkpoint_triggered seen": 3,
        "checkpoint_triggered hint": 5, "checkpoint_passed hint": 5, "checkpoint_triggered noted": 5,
    }
)  # fmt: skip
"""Of each checkpoint, on the chain and among the events alike."""


async def _submit(stage: Stage, atlas_id: str, label: str) -> Run:
    app = stage.new_app()
    agent = await make_agent(stage.world, SCRIPT, app=app, slug=app, atlases=[atlas_id])
    draft = JobDraft(agent=agent.slug, payload={"text": "go"})
    job = await jobs.submit(stage.world.db, stage.world.admin.actor, draft)
    return stage.add(
        Run(
            label=label, kind=Kind.WITH_KEY, app=app, agent=agent, job_id=job.id, session_id=job.session_id,
            acts=ACTS, steps=len(SCRIPT) + 1,
        )
    )  # fmt: skip


async def _on_the_chain(stage: Stage, run: Run) -> Counter[str]:
    entries = await audit.list_entries(stage.world.db, stage.world.admin.actor, run.session_id, 0, 1000)
    told = [(each.action, each.body) for each in entries if each.action.startswith("checkpoint_")]
    return Counter(f"{name} {body['data']['checkpoint_id']}" for name, body in told if body is not None)


async def _among_events(stage: Stage, run: Run) -> Counter[str]:
    rows = await stage.rows(
        "select type, data ->> 'checkpoint_id' as id from event where session_id = $1 and type like 'checkpoint\\_%'",
        run.session_id,
    )
    return Counter(f"{row['type']} {row['id']}" for row in rows)


async def _judge(stage: Stage) -> None:
    acts = Counter(act["payload"]["act"] for act in await stage.outside.log())
    faults = []
    for run in stage.runs:
        (job,) = await stage.rows("select * from job where id = $1", run.job_id)
        if job["status"] != "COMPLETED":
            faults.append(f"{run.label}: {job['status']} {job['holds']} {job['error_message']}")
        happened = {act: count for act, count in acts.items() if act.startswith(str(run.job_id))}
        if happened != {act_name(run.job_id, *act): 1 for act in ACTS}:
            faults.append(f"{run.label}: {happened}")
        calls = await stage.rows(
            "select status from tool_call where job_id = $1 order by step_index, position", run.job_id
        )
        if [row["status"] for row in calls] != STATUSES:
            faults.append(f"{run.label}: {[row['status'] for row in calls]}")
        (kept,) = await stage.rows("select state from session_gates where session_id = $1", run.session_id)
        state = state_of(orjson.loads(kept["state"]))
        # Three looks and three acts ran, and no act left anything that would let another through.
        spent = [window.calls for window in state.spent.values()]
        if (state.executed, state.passes, spent) != (6, (), [3]):
            faults.append(f"{run.label}: {state}")
        for told in (await _on_the_chain(stage, run), await _among_events(stage, run)):
            if told != TRACE:
                faults.append(f"{run.label}: {told - TRACE} {TRACE - told}")
    faults += [name for name, query in INVARIANTS.items() if await stage.rows(query)]
    faults += [str(fault) for fault in (await audit.verify(stage.world.db, stage.world.admin.actor)).faults]
    assert not faults, "\n".join(faults)


@extents
@pytest.mark.proves("D.378")
async def test_a_governed_job_is_killed_at_every_commit(stage: Stage, whole: bool) -> None:
    atlas_id = (await publish(stage.world, MANIFEST)).version.atlas_id
    first = await _submit(stage, atlas_id, "nothing")
    worker = await stage.worker(first.app, records=True)
    assert await stage.finished(first.job_id) == "COMPLETED"
    assert await worker.end() == 0, worker.said()
    points = [
        point
        for point in from_the_claim_on(worth_a_try(worker.points()))
        if name(point) in ("advance_job", "model", "tool", "act")
    ]
    if not whole:
        points = apart(points, worker.points())
    assert len(points) > 20

    async def kill(point: str) -> None:
        run = await _submit(stage, atlas_id, point)
        await stage.killed(run, point)
        await stage.rescued(run)

    await each(points, kill)
    await _judge(stage)
