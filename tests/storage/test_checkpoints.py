"""A checkpoint is the same after JSONB, and any edit of it in SQL is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cortex_plane.db.database import NOBODY, Database
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, CorruptionType, Progress
from cortex_plane.kernel.canonical import canonical
from tests.fixtures.checkpoints import CHECKPOINTS, VALUES, opened, plain, sealed

with_database = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """To every field and element, outer ones first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, str(key))
        yield from paths(item, (*path, str(key)))


def at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


async def after(db: Database, statement: str, *args: Any) -> str:
    async with db.transaction(NOBODY) as tx:
        text: str = await tx.value(statement, *args)
    return text


def kind_of_refusal(text: str, mac: bytes) -> CorruptionType:
    with pytest.raises(CheckpointCorrupt) as caught:
        opened(text, mac)
    return caught.value.corruption_type


@with_database
@given(checkpoint=CHECKPOINTS)
@pytest.mark.proves("S1.2")
async def test_a_checkpoint_survives_jsonb(db: Database, checkpoint: Progress) -> None:
    made = sealed(checkpoint)
    again = opened(await after(db, "select $1::text::jsonb::text", made.text), made.mac)
    assert again == checkpoint
    assert sealed(again) == made


@with_database
@given(checkpoint=CHECKPOINTS, data=st.data())
async def test_an_edit_of_any_field_is_noticed(db: Database, checkpoint: Progress, data: st.DataObject) -> None:
    made = sealed(checkpoint)
    blob = orjson.loads(made.text)
    path = data.draw(st.sampled_from(list(paths(blob))))
    value = data.draw(VALUES)
    assume(canonical(value) != canonical(at(blob, path)))
    edit = "select jsonb_set($1::text::jsonb, $2::text[], $3::text::jsonb)::text"
    text = await after(db, edit, made.text, list(path), canonical(value).decode())
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    other_crc = path == ("crc32",) and not is_number
    expected = CorruptionType.CRC_NOT_A_NUMBER if other_crc else CorruptionType.CRC_MISMATCH
    assert kind_of_refusal(text, made.mac) is expected


@with_database
@given(checkpoint=CHECKPOINTS, data=st.data())
async def test_a_field_that_was_taken_out_is_noticed(db: Database, checkpoint: Progress, data: st.DataObject) -> None:
    made = sealed(checkpoint)
    path = data.draw(st.sampled_from(list(paths(orjson.loads(made.text)))))
    text = await after(db, "select ($1::text::jsonb #- $2::text[])::text", made.text, list(path))
    expected = CorruptionType.MISSING_FIELD if len(path) == 1 else CorruptionType.CRC_MISMATCH
    assert kind_of_refusal(text, made.mac) is expected


async def test_every_field_of_a_plain_checkpoint_is_guarded(db: Database) -> None:
    made = sealed(plain())
    edit = "select jsonb_set($1::text::jsonb, $2::text[], '\"edited\"')::text"
    for path in paths(orjson.loads(made.text)):
        kind = kind_of_refusal(await after(db, edit, made.text, list(path)), made.mac)
        assert kind in (CorruptionType.CRC_MISMATCH, CorruptionType.CRC_NOT_A_NUMBER)


async def test_a_number_in_another_form_is_an_edit(db: Database) -> None:
    """JSONB calls 2.0 equal to 2, but keeps the form in which it came."""
    made = sealed(plain())
    edit = "select jsonb_set($1::text::jsonb, '{step_index}', '2.0')::text"
    assert kind_of_refusal(await after(db, edit, made.text), made.mac) is CorruptionType.CRC_MISMATCH
