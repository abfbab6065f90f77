"""`cortex demo`: see within a minute what the plane does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import said, short, tell
from cortex_plane.cli.plane import home, run
from cortex_plane.cli.watch import watch
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.kernel.errors import AlreadyExists, SetupError, extra

if TYPE_CHECKING:
    from cortex_plane.agents.model.agents import AgentDraft
    from cortex_plane.client import Client

app = typer.Typer(no_args_is_help=True, help="See what the plane does, without a key to any model.")

Version = Annotated[str, typer.Argument(help="The release to ship.")]

ADOPTION_SECONDS = "2"
WAIT_SECONDS = 60
INTERVAL = 0.3


@app.command("run")
def run_demo(
    version: Version = "2.4.0",
    within: Annotated[
        int | None,
        typer.Option(min=1, max=86400, help="Seconds in which somebody must approve; a day if left out."),
    ] = None,
) -> None:
    """An agent reads and tags a release, and stops before it deploys, until you approve that."""
    with extra("all"):
        from cortex_plane.main import demo

    draft = JobDraft(
        agent=demo.AGENT, payload={"text": version}, policies=demo.sooner(within) if within else []
    )
    job = run(lambda plane: plane.jobs.submit(draft))
    said(f"job {job.id}")
    said(f"decide in the browser (`cortex member login-link`), or: cortex approval list --job {job.id}")
    ended = run(lambda plane: watch(plane, job.id, INTERVAL, as_json=False))
    _show_acts(job.id)
    raise typer.Exit(0 if ended.status is JobStatus.COMPLETED else 1)


@app.command("gates")
def run_gates(
    message: Annotated[str, typer.Argument(help="What the agent is asked to do.")] = "",
) -> None:
    """An agent under an atlas: its gates ask it, advise it, look on, and one of them waits for you."""
    with extra("all"):
        from cortex_plane.main import demo_gates

    draft = JobDraft(agent=demo_gates.AGENT, payload={"text": message or demo_gates.MESSAGE})
    job = run(lambda plane: plane.jobs.submit(draft))
    said(f"job {job.id}")
    said(f"its gates: cortex atlas get {demo_gates.ATLAS}")
    said(f"the last one is for you: in the browser, or: cortex approval list --job {job.id}")
    ended = run(lambda plane: watch(plane, job.id, INTERVAL, as_json=False))
    _show_acts(job.id)
    raise typer.Exit(0 if ended.status is JobStatus.COMPLETED else 1)


@app.command("crash")
def crash(version: Version = "2.4.0") -> None:
    """Kill a worker with SIGKILL in the middle of a side effect, and see the job resume without repeating it."""
    with extra("all"):
        from cortex_plane.main import demo

    run(lambda plane: _make_agent(plane, demo.draft(crash=True)))
    said("1  a worker of its own starts; no other worker takes this job")
    first = _worker(slow="30")
    try:
        job = run(
            lambda plane: plane.jobs.submit(JobDraft(agent=demo.CRASH_AGENT, payload={"text": version}))
        )
        said(f"2  job {job.id} is submitted")
        _until_deployed(job.id, first)
        said("3  the deployment has happened, its answer has not arrived: kill -9")
    finally:
        first.kill()
        first.wait()
    said("4  a second worker starts; it waits until the first one's lease is over and adopts the job")
    second = _worker(slow="0")
    try:
        ended = run(lambda plane: watch(plane, job.id, INTERVAL, as_json=False))
    finally:
        second.terminate()
        second.wait()
    times = _show_acts(job.id)
    said(f"5  the job is {ended.status}; the deployment happened {times} time{'s' if times != 1 else ''}")
    raise typer.Exit(0 if ended.status is JobStatus.COMPLETED and times == 1 else 1)


async def _make_agent(plane: Client, draft: AgentDraft) -> None:
    with contextlib.suppress(AlreadyExists):
        await plane.agents.create(draft)


def _worker(slow: str) -> subprocess.Popen[bytes]:
    """A worker process of our own, whose deployments take ``slow`` seconds to answer."""
    from cortex_plane.main import demo

    environment = {
        **os.environ,
        "CORTEX_DEMO_SLOW": slow,
        "CORTEX_ADOPTION_SECONDS": ADOPTION_SECONDS,
        "CORTEX_LOG_LEVEL": "error",
    }
    return subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-m", "cortex_plane", "worker", "--app", demo.CRASH_REFERENCE],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _until_deployed(job_id: UUID, worker: subprocess.Popen[bytes]) -> None:
    from cortex_plane.main import demo

    deadline = time.monotonic() + WAIT_SECONDS
    while not any(act["job"] == str(job_id) and act["act"] == "deploy" for act in demo.acts()):
        if worker.poll() is not None or time.monotonic() > deadline:
            raise SetupError(
                "The demo's worker did not get as far as its side effect.",
                code="demo_failed",
                hint="See what the job says: `cortex job show`; the worker needs the same folder as `cortex up`.",
            )
        time.sleep(0.05)


def _show_acts(job_id: UUID) -> int:
    from cortex_plane.main import demo

    mine = [act for act in demo.acts() if act["job"] == str(job_id)]
    said(f"what happened to the outside world ({home() / demo.FOLDER / demo.ACTS}):")
    for act in mine:
        tell(f"   {short(act['act'], 50)} {short(act.get('version', act.get('ticket', '')), 100)}")
    return len([act for act in mine if act["act"] == "deploy"])
