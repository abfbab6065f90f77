from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.kernel.errors import RETRIED, Backoff, ErrorClass, classify


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (None, ErrorClass.INFRASTRUCTURE),
        (400, ErrorClass.PERMANENT),
        (401, ErrorClass.PERMANENT),
        (404, ErrorClass.PERMANENT),
        (408, ErrorClass.TRANSIENT),
        (422, ErrorClass.PERMANENT),
        (429, ErrorClass.TRANSIENT),
        (500, ErrorClass.INFRASTRUCTURE),
        (502, ErrorClass.INFRASTRUCTURE),
        (503, ErrorClass.TRANSIENT),
        (529, ErrorClass.TRANSIENT),
        (302, ErrorClass.INFRASTRUCTURE),
    ],
)
@pytest.mark.proves("S0.6")
def test_errors_are_classified_by_status(status: int | None, kind: ErrorClass) -> None:
    assert classify(status) is kind


@given(st.none() | st.integers(100, 599))
def test_only_a_refusal_is_final(status: int | None) -> None:
    refused = status is not None and 400 <= status < 500 and status not in (408, 429)
    assert (classify(status) in RETRIED) is not refused


def test_an_unusable_answer_is_not_asked_for_again() -> None:
    assert {ErrorClass.INFRASTRUCTURE, ErrorClass.TRANSIENT} == RETRIED


CHANCES = st.floats(0, 1, exclude_max=True)


@given(st.floats(0.001, 3600), st.floats(0.001, 86_400), st.integers(0, 10**6), CHANCES)
def test_the_wait_is_anywhere_below_its_bound(base: float, cap: float, count: int, chance: float) -> None:
    delay = Backoff(base_seconds=base, cap_seconds=cap).delay(count, chance)
    bound = min(cap, base * 2.0 ** min(count, 64))
    assert 0 <= delay <= bound
    assert delay == pytest.approx(chance * bound)


@given(st.integers(0, 100), CHANCES)
@pytest.mark.proves("S0.6")
def test_the_bound_doubles_until_the_cap(count: int, chance: float) -> None:
    backoff = Backoff(base_seconds=1, cap_seconds=300)
    assert backoff.delay(count, chance) <= backoff.delay(count + 1, chance) <= 300
    assert [backoff.delay(n, 0.5) for n in range(10)] == [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 150]
