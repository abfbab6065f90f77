from __future__ import annotations

import base64
import contextlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.pages import Position, decode_number, decode_position, encode, encode_position

times = st.datetimes(
    min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
)  # microseconds and all


@given(times, st.uuids())
def test_a_position_comes_back_as_it_went(created_at: datetime, id: UUID) -> None:
    position = Position(created_at=created_at, id=id)
    cursor = encode_position("teams", position)
    assert cursor is not None
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert decode_position("teams", cursor) == position


@given(st.integers(0, 2**31 - 1))
def test_a_number_comes_back_as_it_went(number: int) -> None:
    assert decode_number("messages", encode("messages", number)) == number


def test_no_cursor_is_the_beginning() -> None:
    assert encode_position("teams", None) is None
    assert decode_position("teams", None) is None
    assert decode_number("messages", None) is None


def test_a_cursor_belongs_to_one_list() -> None:
    position = Position(created_at=datetime(2026, 1, 1, tzinfo=UTC), id=UUID(int=1))
    cursor = encode_position("teams", position)
    with pytest.raises(InvalidInput):
        decode_position("agents", cursor)
    with pytest.raises(InvalidInput):
        decode_number("messages", encode("audit", 1))


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    there = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    found = decode_position("teams", encode("teams", there, str(UUID(int=1))))
    assert found is not None
    assert found.created_at == datetime(2026, 1, 1, 10, tzinfo=UTC)


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text()
parts = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


def _only_ours(cursor: str) -> None:
    for decode in (decode_position, decode_number):
        with contextlib.suppress(InvalidInput):
            decode("teams", cursor)


@given(st.text())
def test_any_text_is_a_cursor_or_a_known_error(text: str) -> None:
    _only_ours(text)


@given(st.binary())
def test_any_bytes_in_the_right_wrapping_are_a_cursor_or_a_known_error(content: bytes) -> None:
    _only_ours(base64.urlsafe_b64encode(content).decode().rstrip("="))


@given(st.lists(parts, max_size=3))
def test_any_json_in_the_right_wrapping_is_a_cursor_or_a_known_error(given_parts: list[Any]) -> None:
    content = orjson.dumps(["teams", *given_parts])
    _only_ours(base64.urlsafe_b64encode(content).decode().rstrip("="))


@given(st.text(alphabet="0123456789-T:+.Z"), st.text(alphabet="0123456789abcdef-{}"))
def test_almost_a_position_is_a_cursor_or_a_known_error(at: str, id: str) -> None:
    _only_ours(encode("teams", at, id))
