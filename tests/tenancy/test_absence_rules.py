"""Which absences would lead back to whoever is absent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.orgs import AbsenceDraft, Span, span_of, way_back

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADA, BOB, CLEO, DAN = (UUID(int=n) for n in range(1, 5))


def span(member: UUID, delegate: UUID, first: int, last: int) -> Span:
    """From one day to another."""
    day = timedelta(days=1)
    return Span(member_id=member, delegate_id=delegate, starts_at=NOW + first * day, ends_at=NOW + last * day)


@pytest.mark.proves("D.181")
def test_a_circle_counts_only_while_all_of_it_is_absent_at_once() -> None:
    planned = span(ADA, BOB, 0, 10)
    assert way_back(planned, []) is None
    assert way_back(planned, [span(BOB, ADA, 3, 5)]) == [BOB]
    assert way_back(planned, [span(BOB, ADA, 10, 12)]) is None, "one ends where the other begins"
    assert way_back(planned, [span(BOB, CLEO, 3, 5), span(CLEO, ADA, 4, 6)]) == [BOB, CLEO]
    assert way_back(planned, [span(BOB, CLEO, 3, 5), span(CLEO, ADA, 5, 6)]) is None
    assert way_back(planned, [span(BOB, CLEO, 0, 2), span(BOB, DAN, 2, 9), span(DAN, ADA, 8, 20)]) == [BOB, DAN]
    assert way_back(planned, [span(BOB, CLEO, 0, 9), span(CLEO, BOB, 0, 9)]) is None, "a circle of others ends too"


_spans = st.builds(
    lambda pair, first, length: span(pair[0], pair[1], first, first + length),
    st.permutations([ADA, BOB, CLEO, DAN]),
    st.integers(0, 12),
    st.integers(1, 8),
)


@pytest.mark.proves("D.181")
@settings(max_examples=300, deadline=None)
@given(_spans, st.lists(_spans, max_size=8))
def test_it_agrees_with_walking_every_day(planned: Span, others: list[Span]) -> None:
    """A day by day walk, in the plainest way: from the delegate on, does anybody's delegate become the absent one?"""
    # Nobody has two absences at once.
    kept: list[Span] = []
    for other in others:
        if other.member_id != planned.member_id and not any(
            k.member_id == other.member_id and k.starts_at < other.ends_at and other.starts_at < k.ends_at for k in kept
        ):
            kept.append(other)

    def back_on(day: datetime) -> bool:
        person, seen = planned.delegate_id, set[UUID]()
        while person not in seen:
            seen.add(person)
            away = [k for k in kept if k.member_id == person and k.starts_at <= day < k.ends_at]
            if not away:
                return False
            person = away[0].delegate_id
            if person == planned.member_id:
                return True
        return False

    days = (planned.ends_at - planned.starts_at).days
    expected = any(back_on(planned.starts_at + timedelta(days=n)) for n in range(days))
    assert (way_back(planned, kept) is not None) == expected


@pytest.mark.proves("D.180")
@pytest.mark.parametrize(
    ("starts", "ends", "said"),
    [
        (None, timedelta(0), "end before it begins"),
        (timedelta(days=3), timedelta(days=3), "end before it begins"),
        (None, timedelta(days=-1), "end before it begins"),
        (None, timedelta(days=366, seconds=1), "within a year"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(starts: timedelta | None, ends: timedelta, said: str) -> None:
    draft = AbsenceDraft(delegate_id=BOB, starts_at=None if starts is None else NOW + starts, ends_at=NOW + ends)
    with pytest.raises(InvalidInput, match=said):
        span_of(ADA, draft, NOW)


def test_what_would_begin_in_the_past_begins_now() -> None:
    draft = AbsenceDraft(delegate_id=BOB, starts_at=NOW - timedelta(days=400), ends_at=NOW + timedelta(days=366))
    assert span_of(ADA, draft, NOW).starts_at == NOW
