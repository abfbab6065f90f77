"""When a message is tried again, and when nobody tries any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cortex_plane.notify.model.notifications import TryAgain
from cortex_plane.notify.rules import LONGEST_WAIT_SECONDS, SCHEDULE, delay, gives_up, requested_pause

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.proves("D.125")
def test_each_failure_waits_longer_up_to_two_hours_with_full_jitter() -> None:
    assert [delay(n, 1.0, None) for n in range(1, 12)] == [
        5, 30, 120, 600, 1800, 3600, 7200, 7200, 7200, 7200, 7200,
    ]  # fmt: skip
    assert delay(3, 0.25, None) == 30
    assert delay(3, 0.0, None) == 0


def test_whoever_asks_for_more_time_gets_it_within_reason() -> None:
    assert delay(1, 1.0, 60) == 60
    assert delay(4, 1.0, 60) == 600, "but not for less than our own"
    assert delay(1, 1.0, 1e9) == LONGEST_WAIT_SECONDS


@pytest.mark.proves("D.125")
def test_it_is_given_up_after_the_twelfth_try() -> None:
    assert gives_up(11, None, NOW) is None
    assert gives_up(12, None, NOW) == "given up after 12 tries"
    assert len(SCHEDULE) == 11


def test_an_outcome_is_told_for_a_day() -> None:
    assert gives_up(1, NOW - timedelta(hours=23), NOW) is None
    assert "over for more than a day" in str(gives_up(1, NOW - timedelta(hours=25), NOW))


def test_a_channel_may_have_its_own_times() -> None:
    assert delay(2, 1.0, None, (1, 2, 3)) == 2
    assert gives_up(3, None, NOW, (1, 2, 3)) is None
    assert gives_up(4, None, NOW, (1, 2, 3)) is not None


def test_pause_of_no_time_is_none() -> None:
    """Else whoever answers `Retry-After: 0` would be asked again at once, without end."""
    pauses = [requested_pause(TryAgain("busy", after_seconds=seconds)) for seconds in (None, 0.0, -1.0, 2.0, 1e9)]
    assert pauses == [None, None, None, timedelta(seconds=2), timedelta(days=1)]
