from __future__ import annotations

from cortex_plane.jobs.model.jobs import INITIAL, OPEN, RESUBMITTABLE, TERMINAL, TRANSITIONS, JobStatus


def test_the_machine_covers_every_status_and_every_status_is_reached() -> None:
    assert set(TRANSITIONS) == set(JobStatus)
    reached = {INITIAL}
    for _ in JobStatus:
        reached |= {target for status in reached for target in TRANSITIONS[status]}
    assert reached == set(JobStatus)
    assert not any(status in TRANSITIONS[status] for status in JobStatus)


def test_every_open_job_can_be_cancelled_and_no_ended_one_moves() -> None:
    assert {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED} == TERMINAL
    assert set(JobStatus) == OPEN | TERMINAL
    assert all(JobStatus.CANCELLED in TRANSITIONS[status] for status in OPEN)
    assert not any(TRANSITIONS[ended] for ended in TERMINAL)
    assert RESUBMITTABLE < TERMINAL


def test_every_edge_says_why() -> None:
    assert all(reason for targets in TRANSITIONS.values() for reason in targets.values())
