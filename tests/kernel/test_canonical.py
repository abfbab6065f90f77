from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.kernel.canonical import MAX_DEPTH, canonical, check_json
from cortex_plane.kernel.errors import InvalidInput, TooLarge


def test_one_value_has_one_form() -> None:
    assert canonical({"b": 1, "a": {"d": [1, 2.5], "c": None}}) == b'{"a":{"c":null,"d":[1,2.5]},"b":1}'
    assert canonical({"a": 1.0}) == canonical({"a": 1})
    assert canonical(("x", True)) == canonical(["x", True])
    assert canonical({"a": True}) != canonical({"a": 1})
    assert canonical("ü") == '"ü"'.encode()
    assert canonical(-0.0) == b"0"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": ["\x00"]}, "$.a[0]"),
        ({"a\x00": 1}, "$ (a key)"),
        ({"a": "\ud800"}, "$.a"),
        ({"a": {"b": float("nan")}}, "$.a.b"),
        ([float("inf")], "$[0]"),
        ({"a": 2**64}, "$.a"),
        (-(2**63) - 1, "$"),
        ({1: "a"}, "$"),
        ({"a": {1, 2}}, "$.a"),
        ({"a": b"bytes"}, "$.a"),
    ],
)
def test_what_cannot_be_stored_exactly_is_refused_with_its_place(value: Any, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        canonical(value)
    assert caught.value.details["field"] == path


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_nesting_and_size_have_limits() -> None:
    canonical(_nested(MAX_DEPTH))
    with pytest.raises(InvalidInput):
        canonical(_nested(MAX_DEPTH + 1))
    check_json({"a": "x" * 10}, "payload", 18)
    with pytest.raises(TooLarge) as caught:
        check_json({"a": "x" * 11}, "payload", 18)
    assert caught.value.details["field"] == "payload"
    with pytest.raises(TooLarge):
        check_json({"a": "ü" * 10}, "payload", 18)


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(values)
def test_reading_a_canonical_value_and_writing_it_again_changes_nothing(value: Any) -> None:
    written = canonical(value)
    assert canonical(orjson.loads(written)) == written
