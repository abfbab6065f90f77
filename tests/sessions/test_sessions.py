from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.sessions.model.sessions import INITIAL, TERMINAL, TITLE_LENGTH, TRANSITIONS, SessionStatus, title_from


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("  Hello  ", "Hello"),
        ("\n\n  First \nSecond", "First"),
        ("", ""),
        (" \n\t ", ""),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("x" * 78 + "  yyy", "x" * 78 + "…"),
        ("a\u2028b", "a"),
        ("日本語" * 40, ("日本語" * 40)[:79] + "…"),
    ],
)
def test_a_title_is_the_first_line_shortened(text: str, title: str) -> None:
    assert title_from(text) == title


@given(st.text())
def test_a_title_is_always_one_short_line(text: str) -> None:
    title = title_from(text)
    assert len(title) <= TITLE_LENGTH
    assert len(title.splitlines()) <= 1
    assert bool(title) == bool(text.strip())


def test_the_life_cycle_covers_every_status_and_ends() -> None:
    assert set(TRANSITIONS) == set(SessionStatus)
    assert {status for status, targets in TRANSITIONS.items() if not targets} == TERMINAL
    reached = {INITIAL}
    for _ in SessionStatus:
        reached |= {target for status in reached for target in TRANSITIONS[status]}
    assert reached == set(SessionStatus)
    assert not any(status in TRANSITIONS[status] for status in SessionStatus)
    assert all(SessionStatus.TERMINATED in TRANSITIONS[status] for status in set(SessionStatus) - TERMINAL)
