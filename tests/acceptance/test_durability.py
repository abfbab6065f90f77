"""The promises of the durable core as a user meets them: whole processes, killed with kill -9, under `cortex up`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortex_plane import Client, JobDraft
from cortex_plane.domain.jobs import Receipt
from tests.acceptance.planes import Plane


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, and reachable for the unprivileged user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(prefix="cortex-work-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def acts(folder: Path, job_id: str) -> list[str]:
    try:
        lines = (folder / ".cortex" / "demo" / "acts.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [act["act"] for act in map(json.loads, lines) if act["job"] == job_id]


def worker_pid(plane: Plane) -> int:
    deadline = time.monotonic() + 30
    while True:
        alive = [worker for worker in plane.json("workers", "list") if worker["alive"]]
        if alive:
            return int(alive[0]["pid"])
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.proves("D.30")
def test_a_killed_worker_is_replaced_and_its_job_finishes_untouched(folder: Path) -> None:
    slow = {"CORTEX_DEMO_SLOW": "1.5", "CORTEX_ADOPTION_SECONDS": "2"}
    plane = Plane(folder, CORTEX_PORT="0", **slow)
    plane.wait_until_ready()
    first = worker_pid(plane)
    job = plane.json("job", "submit", "release-demo", "--payload", '{"text": "1.0"}')
    plane.approve(job["id"])
    deadline = time.monotonic() + 60
    while "deploy" not in acts(folder, job["id"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(first, signal.SIGKILL)
    ended = plane.until(job["id"], "COMPLETED", "FAILED")
    assert ended["status"] == "COMPLETED", ended
    assert acts(folder, job["id"]) == ["tag", "deploy"], "nothing was lost and nothing repeated"
    assert worker_pid(plane) != first
    assert "whole" in plane.cortex("audit", "verify")
    assert plane.end(signal.SIGINT) == 0


async def _pause_after_the_first_step(folder: Path) -> tuple[str, Receipt]:
    async with Client.here(folder / ".cortex") as client:
        job = await client.jobs.submit(JobDraft(agent="release-demo", payload={"text": "1.0"}))
        async with asyncio.timeout(60):
            while job.step_index is None:
                await asyncio.sleep(0.01)
                job = await client.jobs.get(job.id)
        return str(job.id), await client.jobs.pause(job.id, "lunch")


@pytest.mark.proves("D.31")
def test_a_paused_job_survives_a_restart_of_everything_and_resumes_where_it_was(folder: Path) -> None:
    plane = Plane(folder, CORTEX_PORT="0")
    plane.wait_until_ready()
    job_id, receipt = asyncio.run(_pause_after_the_first_step(folder))
    assert (receipt.changed, receipt.job.holds) == (True, ["operator"])
    paused = plane.until(job_id, "PAUSED")
    assert paused["holds"] == ["operator"]
    before = acts(folder, job_id)
    plane.end(signal.SIGKILL)

    again = Plane(folder, CORTEX_PORT="0")
    again.wait_until_ready()
    still = again.json("job", "show", job_id)
    assert (still["status"], still["step_index"]) == ("PAUSED", paused["step_index"])
    assert acts(folder, job_id) == before
    again.cortex("job", "resume", job_id)
    again.approve(job_id)
    ended = again.until(job_id, "COMPLETED", "FAILED")
    assert ended["status"] == "COMPLETED", ended
    assert acts(folder, job_id) == ["tag", "deploy"]
    assert again.end(signal.SIGINT) == 0


@pytest.mark.proves("D.32")
def test_the_crash_demo_kills_its_worker_and_repeats_nothing(folder: Path) -> None:
    plane = Plane(folder, CORTEX_PORT="0")
    plane.wait_until_ready()
    shown = plane.run("demo", "crash")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "happened 1 time" in shown.stdout
    assert "settled by probe" in shown.stdout
    assert plane.end(signal.SIGINT) == 0


def test_a_worker_that_cannot_start_says_why(folder: Path) -> None:
    plane = Plane(folder, CORTEX_PORT="0")
    plane.wait_until_ready()
    for reference, said in {
        "nowhere.at.all:app": "app_not_loadable",
        "json:loads": "app_not_loadable",
        "no-colon": "app_not_loadable",
    }.items():
        failed = plane.run("worker", "--app", reference)
        assert failed.returncode == 1
        assert said in failed.stderr
        assert "Traceback" not in failed.stderr
    plane.environment["CORTEX_MASTER_KEY"] = "ab" * 32
    assert "wrong_master_key" in plane.run("worker").stderr
    plane.environment["CORTEX_MASTER_KEY"] = "not a key"
    assert "invalid_setting" in plane.run("worker").stderr
    assert plane.end(signal.SIGINT) == 0
