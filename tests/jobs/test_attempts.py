from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from cortex_plane.jobs.model.jobs import TRANSITIONS, JobStatus
from cortex_plane.jobs.rules import Orphan, adoption


def an_orphan(**changes: Any) -> Orphan:
    fields: dict[str, Any] = {
        "org_id": UUID(int=1), "id": UUID(int=2), "worker_id": UUID(int=3), "worker": "w-1", "epoch": 4, "deaths": 0,
        "cancelled": False, "held": False,
    }  # fmt: skip
    return Orphan(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "status", "action"),
    [
        ({}, JobStatus.RUNNING, "job_adopted"),
        ({"deaths": 1}, JobStatus.RUNNING, "job_adopted"),
        ({"deaths": 2}, JobStatus.FAILED, "job_failed"),
        ({"deaths": 9}, JobStatus.FAILED, "job_failed"),
        ({"deaths": 9, "stopped": True}, JobStatus.RUNNING, "job_adopted"),
        ({"held": True}, JobStatus.PAUSED, "job_paused"),
        ({"held": True, "deaths": 2}, JobStatus.FAILED, "job_failed"),
        ({"cancelled": True}, JobStatus.CANCELLED, "job_cancelled"),
        ({"cancelled": True, "deaths": 2, "held": True}, JobStatus.CANCELLED, "job_cancelled"),
    ],
)
def test_what_becomes_of_a_dead_workers_job(changes: dict[str, Any], status: JobStatus, action: str) -> None:
    decided = adoption(an_orphan(**changes), poison_deaths=3)
    assert (decided.status, decided.action) == (status, action)
    assert status is JobStatus.RUNNING or status in TRANSITIONS[JobStatus.RUNNING]


def test_poison_names_the_job_and_says_what_to_look_for() -> None:
    error = adoption(an_orphan(deaths=2), poison_deaths=3).error
    assert error is not None
    assert f"3 workers died with job {UUID(int=2)}" in error
    assert "`cortex job resubmit`" in error


def test_a_single_death_can_be_made_poison() -> None:
    assert adoption(an_orphan(), poison_deaths=1).status is JobStatus.FAILED
