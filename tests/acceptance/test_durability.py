"""The promises of the durable core as a user meets them: whole processes, killed with kill -9, under `cortex up`."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.planes import Plane


@pytest.mark.proves("D.30")
def test_a_killed_worker_is_replaced_and_its_job_finishes_untouched(plane: Plane) -> None:
    first = plane.worker_pid()
    job = plane.post("/v1/jobs", agent="release-demo", payload={"text": "1.0"})
    plane.approve(job["id"])
    plane.until(lambda: "deploy" in plane.acts(job["id"]))
    os.kill(first, signal.SIGKILL)
    ended = plane.reached(job["id"], "COMPLETED", "FAILED")
    assert ended["status"] == "COMPLETED", ended
    assert plane.acts(job["id"]) == ["tag", "deploy"], "nothing was lost and nothing repeated"
    plane.until(lambda: plane.worker_pid() != first)
    plane.require_whole_audit()


@pytest.mark.proves("D.32")
def test_the_crash_demo_kills_its_worker_and_repeats_nothing(plane: Plane) -> None:
    shown = plane.run("demo", "crash")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "happened 1 time" in shown.stdout
    assert "settled by probe" in shown.stdout


def test_a_worker_that_cannot_start_says_why(plane: Plane) -> None:
    failed = plane.run("worker", "--app", "nowhere.at.all:app")
    assert failed.returncode == 1
    assert "app_not_loadable" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "wrong_master_key" in plane.run("worker", CORTEX_MASTER_KEY="ab" * 32).stderr
    assert "invalid_setting" in plane.run("worker", CORTEX_MASTER_KEY="not a key").stderr
