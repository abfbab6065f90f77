"""What `canonical` accepts comes back from JSONB with the same canonical bytes; what it refuses, it names."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cortex_plane.db.database import NOBODY, Database
from cortex_plane.kernel.canonical import MAX_DEPTH, canonical
from cortex_plane.kernel.errors import InvalidInput

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
NUMBERS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(2**53, 2**70)
    | st.floats(-(2**70), -(2**53))
    | st.integers(-(2**53), 2**53).map(float)
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
@example(value=-0.0)
@example(value=1e16)
@example(value=-1e16)
@example(value=1.5e300)
@example(value=5e-324)
@example(value=sys.float_info.max)
@example(value=float(2**63))
@example(value=float(2**64))
@example(value=math.nextafter(2.0**64, 0))
@example(value=-float(2**63))
@example(value=math.nextafter(-(2.0**63), -math.inf))
@example(value=[2**63 - 1, -(2**63), 2**53 + 1, 0.1, 1 / 3])
@example(value={"b": 1, "a": {"é": "\U0001f600", "": None}, "\u2028": "\\u0000", "A": '"'})
@example(value=nested(MAX_DEPTH))
@pytest.mark.proves("D.17")
async def test_the_bytes_survive_jsonb(db: Database, value: Any) -> None:
    before = canonical(value)
    async with db.transaction(NOBODY) as tx:
        back = await tx.value("select $1::jsonb", value)
    assert canonical(back) == before


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$"),
        ([1, math.inf], "$[1]"),
        ({"a": {"b": [-math.inf]}}, "$.a.b[0]"),
        ({"a": "x\x00"}, "$.a"),
        ({"a": {"\x00": 1}}, "$.a (a key)"),
        (["\ud800"], "$[0]"),
        ({"\udfff": 1}, "$ (a key)"),
        ([[2**64]], "$[0][0]"),
        ({"n": -(2**63) - 1}, "$.n"),
        ({"a": [{1: 2}]}, "$.a[0]"),
        ({"a": {None: 2}}, "$.a"),
        ({"a": {1, 2}}, "$.a"),
        ([b"bytes"], "$[0]"),
        (nested(MAX_DEPTH + 1), None),
    ],
)
@pytest.mark.proves("D.17")
def test_what_cannot_survive_is_refused_with_its_path(value: Any, path: str | None) -> None:
    with pytest.raises(InvalidInput) as raised:
        canonical(value)
    if path is None:
        assert f"deeper than {MAX_DEPTH} levels" in raised.value.message
        assert str(raised.value.details["field"]).startswith("$.k[0].k[0]")
    else:
        assert raised.value.details["field"] == path
        assert f"`{path}`" in raised.value.message
