from __future__ import annotations

import functools
import hashlib
import hmac
import json
import operator
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import jsonschema_rs
import orjson
import pytest
from asyncpg.pgproto import pgproto
from hypothesis import example, given
from hypothesis import strategies as st

from cortex_plane.jobs.model.checkpoints import (
    MAX_BYTES,
    MIGRATIONS,
    SCHEMA_VERSION,
    WARN_BYTES,
    CheckpointCorrupt,
    CheckpointStatus,
    CorruptionType,
    Migration,
    Phase,
    Progress,
    ToolStatus,
    as_shown,
    check_seal,
    migrate,
    schema,
    seal,
)
from cortex_plane.jobs.model.effects import CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.canonical import MAX_DEPTH, canonical
from cortex_plane.kernel.errors import InvalidInput, TooLarge
from tests.fixtures.checkpoints import (
    AGENT,
    AGENT_DATA,
    CHECKPOINTS,
    HASH,
    JOB,
    KEY,
    NOW,
    VALUES,
    agent_data,
    log_entry,
    opened,
    plain,
    sealed,
    tool,
)
from tests.fixtures.properties import holds_for

Edit = Callable[[dict[str, Any]], object]
T = CorruptionType


def resealed(edit: Edit, checkpoint: Progress | None = None) -> tuple[bytes, bytes]:
    """The text and HMAC that a plane would have written, had it written the edited blob."""
    blob = orjson.loads(sealed(checkpoint or plain()).text)
    blob["execution_log"] = orjson.loads(orjson.dumps([log_entry()], option=orjson.OPT_UTC_Z))
    edit(blob)
    blob["crc32"] = zlib.crc32(canonical({name: value for name, value in blob.items() if name != "crc32"}))
    text = canonical(blob)
    return text, hmac.digest(KEY, JOB.bytes + text, "sha256")


def edited(edit: Edit) -> tuple[bytes, bytes]:
    """What stands in the database after somebody edited it."""
    made = sealed(plain())
    blob = orjson.loads(made.text)
    edit(blob)
    return orjson.dumps(blob), made.mac


def put(path: str, value: Any) -> Edit:
    *parents, last = path.split(".")

    def edit(blob: dict[str, Any]) -> None:
        inner: Any = blob
        for parent in parents:
            inner = inner[int(parent) if isinstance(inner, list) else parent]
        inner[last] = value

    return edit


def refusal(text: str | bytes, mac: bytes | None, **changes: Any) -> CheckpointCorrupt:
    with pytest.raises(CheckpointCorrupt) as caught:
        opened(text, mac, **changes)
    assert caught.value.code == "checkpoint_corrupt"
    assert caught.value.hint
    assert caught.value.details["corruption_type"] is caught.value.corruption_type
    return caught.value


# Sealing and opening


@holds_for(CHECKPOINTS, few=30, many=300)
def test_what_was_sealed_is_opened(checkpoint: Progress) -> None:
    made = sealed(checkpoint)
    again = opened(made.text, made.mac)
    assert again == checkpoint
    assert sealed(again) == made


@holds_for(CHECKPOINTS, few=30, many=300)
def test_the_seal_is_what_it_says(checkpoint: Progress) -> None:
    made = sealed(checkpoint)
    blob = orjson.loads(made.text)
    assert made.text.encode() == canonical(blob)
    assert made.size == len(made.text.encode())
    assert made.mac == hmac.new(KEY, JOB.bytes + made.text.encode(), hashlib.sha256).digest()
    assert blob.pop("crc32") == zlib.crc32(canonical(blob))
    assert blob["schema_version"] == SCHEMA_VERSION


PUBLISHED = jsonschema_rs.validator_for(schema(), validate_formats=True)


@pytest.mark.proves("S1.1")
@holds_for(CHECKPOINTS, few=30, many=300)
def test_the_published_schema_accepts_whatever_is_sealed(checkpoint: Progress) -> None:
    PUBLISHED.validate(orjson.loads(sealed(checkpoint).text))


@given(AGENT_DATA, VALUES)
@example({"n": -0.0}, 1e16)
@example({"n": 2**64 - 1}, 5e-324)
@example({'"': "\\u0000", "\u2028": "\U0001f600"}, None)
def test_every_json_value_survives(data: dict[str, Any], result: Any) -> None:
    checkpoint = plain(working_data=agent_data(data), active_tools=(tool(result=canonical(result)),))
    made = sealed(checkpoint)
    again = opened(made.text, made.mac)
    assert again == checkpoint
    assert canonical({key: orjson.loads(value) for key, value in again.working_data.items()}) == canonical(data)
    assert (again.active_tools[0].result or b"null") == canonical(result)


def test_values_as_deep_as_canonical_allows_survive() -> None:
    deep = orjson.loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    checkpoint = plain(working_data={"deep": canonical(deep)}, active_tools=(tool(result=canonical(deep)),))
    made = sealed(checkpoint)
    assert opened(made.text, made.mac) == checkpoint


def test_null_is_no_result() -> None:
    assert tool(result=b"null") == tool(result=None)
    made = sealed(plain(active_tools=(tool(result=None),)))
    assert '"result":null' in made.text
    assert opened(made.text, made.mac).active_tools[0].result is None


def test_a_checkpoint_without_the_optional_fields_is_opened() -> None:
    def leave_out(blob: dict[str, Any]) -> None:
        del blob["memory_context"]["conversation_summary"]
        del blob["memory_context"]["accumulated_facts"]
        del blob["active_tools"][0]["result"]

    again = opened(*resealed(leave_out))
    assert (again.conversation_summary, again.accumulated_facts) == (None, ())
    assert again.active_tools[0].result is None


def test_the_ids_of_the_database_driver_are_sealed_too() -> None:
    given_id = pgproto.UUID(str(UUID(int=4)))
    made = sealed(plain(checkpoint_id=given_id, active_tools=(tool(invocation_id=given_id),), invocation=given_id))
    assert opened(made.text, made.mac).invocation == UUID(int=4)


def test_times_are_written_in_utc() -> None:
    local = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    made = sealed(plain(created_at=local))
    assert '"created_at":"2026-01-01T00:00:00Z"' in made.text
    assert opened(made.text, made.mac).created_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_cursor_stands_among_the_working_data_and_the_agent_does_not_see_it() -> None:
    made = sealed(plain())
    working = orjson.loads(made.text)["memory_context"]["working_data"]
    assert working["$plane"] == {
        "step": 3, "phase": "tools", "message_seq": 5, "iterations": 4, "invocation": str(UUID(int=3)),
        "gates": {"budget": 1},
    }  # fmt: skip
    assert "$plane" not in opened(made.text, made.mac).working_data


# What cannot be sealed


@pytest.mark.parametrize("key", ["$", "$plane", "$anything"])
def test_keys_of_the_plane_are_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="starts with `\\$`"):
        plain(working_data={"fine": b"1", key: b"2"}).memory_json()


def test_a_dollar_elsewhere_is_fine() -> None:
    memory = orjson.loads(plain(working_data={"a$": b"1", "in": b'{"$plane":2}'}).memory_json())
    assert memory["working_data"] == {"a$": 1, "in": {"$plane": 2}}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: plain(conversation_summary="\ud800").memory_json(), "conversation_summary"),
        (lambda: plain(accumulated_facts=("fine", "\x00")).memory_json(), "accumulated_facts[1]"),
        (lambda: tool(tool_name=""), "tool_name"),
        (lambda: tool(input_hash="a" * 63), "input_hash"),
        (lambda: tool(input_hash="a" * 64 + "\n"), "input_hash"),
    ],
)
def test_a_value_that_could_not_be_opened_again_is_refused(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.details["field"] == field


def test_a_log_is_put_in_with_a_sum_that_fits() -> None:
    blob = orjson.loads(sealed(plain()).text)
    shown = as_shown(blob, JobStatus.RUNNING, [], [log_entry(step_index=7)])
    (entry,) = shown["execution_log"]
    assert entry == log_entry(
        step_index=7, started_at="2026-03-15T12:29:51.250000Z", finished_at="2026-03-15T12:30:00.250000Z"
    )
    assert shown == {**blob, "crc32": shown["crc32"], "execution_log": [entry]}
    PUBLISHED.validate(shown)
    check_seal(orjson.dumps(shown).decode(), None, JOB, None)


def ledger_row(status: CallStatus, **more: Any) -> ToolCall:
    return ToolCall(
        **{
            "id": UUID(int=3), "job_id": JOB, "step_index": 3, "position": 0, "tool_name": "kubectl", "tool_digest": None,
            "arguments": {}, "read_only": False, "on_uncertain": None, "input_hash": HASH, "status": status, "attempt": 1,
            "dispatch_before": None, "settle_after": None, "result": None, "result_id": None, "error": None,
            "settled_by": None, "created_at": NOW, "finished_at": None, **more,
        }
    )  # fmt: skip


@pytest.mark.proves("S1.201")
@pytest.mark.parametrize(
    ("status", "shown_as", "result", "more"),
    [
        (CallStatus.AWAITING, "pending", None, {}),
        (CallStatus.ALLOWED, "pending", None, {}),
        (CallStatus.APPROVED, "pending", None, {}),
        (CallStatus.CLEARED, "pending", None, {}),
        (CallStatus.INTENDED, "running", None, {}),
        (CallStatus.UNCERTAIN, "running", None, {}),
        (CallStatus.COMPLETED, "completed", {"ok": 1}, {"result": {"ok": 1}}),
        (CallStatus.COMPLETED, "completed", None, {"result": "x" * 2100}),
        (CallStatus.FAILED, "failed", {"error": "out of disk"}, {"error": "out of disk"}),
        (CallStatus.REJECTED, "failed", {"error": "denied by Ada"}, {"error": "denied by Ada"}),
    ],
)
def test_tools_are_shown_as_their_rows_have_them(
    status: CallStatus, shown_as: str, result: Any, more: dict[str, Any]
) -> None:
    stored = sealed(plain(active_tools=(tool(status=ToolStatus.PENDING, result=None),)))
    blob, row = orjson.loads(stored.written), ledger_row(status, **more)
    shown = as_shown(blob, JobStatus.RUNNING, [row], [])
    assert [(entry["status"], entry["result"]) for entry in shown["active_tools"]] == [(shown_as, result)]
    PUBLISHED.validate(shown)
    check_seal(orjson.dumps(shown).decode(), None, JOB, None)
    # A call of another branch that was begun since is shown too; and after the step no results are.
    other = ledger_row(CallStatus.INTENDED, id=UUID(int=4))
    assert [entry["status"] for entry in as_shown(blob, JobStatus.RUNNING, [row, other], [])["active_tools"]] == [
        shown_as, "running",
    ]  # fmt: skip
    over = orjson.loads(sealed(plain(phase=Phase.MODEL)).written)
    assert as_shown(over, JobStatus.RUNNING, [row], [])["active_tools"][0]["result"] is None


@pytest.mark.proves("S1.202")
@pytest.mark.parametrize(
    ("job", "stored", "shown_as"),
    [
        (JobStatus.WAITING_FOR_APPROVAL, "awaiting_approval", "awaiting_approval"),
        (JobStatus.RUNNING, "awaiting_approval", "in_progress"),
        (JobStatus.FAILED, "awaiting_approval", "failed"),
        (JobStatus.CANCELLED, "in_progress", "failed"),
        (JobStatus.COMPLETED, "completed", "completed"),
        (JobStatus.SLEEPING, "in_progress", "in_progress"),
    ],
)
def test_the_status_is_shown_as_its_job_has_it(job: JobStatus, stored: str, shown_as: str) -> None:
    blob = orjson.loads(sealed(plain(status=CheckpointStatus(stored))).written)
    assert as_shown(blob, job, [], [])["status"] == shown_as


@pytest.mark.parametrize("edit", [put("crc32", 1), put("active_tools", 5), lambda blob: blob.pop("status")])
def test_a_damaged_checkpoint_is_shown_as_it_is(edit: Edit) -> None:
    blob = orjson.loads(edited(edit)[0])
    assert as_shown(blob, JobStatus.FAILED, [ledger_row(CallStatus.INTENDED)], [log_entry()]) == blob


@pytest.mark.proves("S1.8")
def test_a_checkpoint_has_a_limit_and_the_refusal_names_what_is_large() -> None:
    assert (WARN_BYTES, MAX_BYTES) == (524_288, 1_048_576)
    room = MAX_BYTES - sealed(plain(working_data=agent_data({"big": "", "small": 1}))).size
    fitting = sealed(plain(working_data=agent_data({"big": "x" * (room - 10), "small": 1})))
    assert MAX_BYTES - 20 <= fitting.size <= MAX_BYTES  # the sum has up to ten digits
    with pytest.raises(TooLarge, match=r"limit is 1048576.*largest part is working_data\.big") as caught:
        sealed(plain(working_data=agent_data({"big": "x" * (room + 10), "small": 1})))
    assert caught.value.code == "checkpoint_too_large"
    with pytest.raises(TooLarge, match="largest part is the result of kubectl"):
        sealed(plain(active_tools=(tool(result=canonical("é" * MAX_BYTES)),)))


# Corruption


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"{}"', "1", "1e400", '{"a":"\ud800"}', b"\xff", "[" * 2000])
def test_not_an_object(text: str | bytes) -> None:
    error = refusal(text, b"")
    assert error.corruption_type is T.NOT_AN_OBJECT
    assert error.message.startswith("Checkpoint is not a JSON object")


@pytest.mark.parametrize("name", schema()["required"])
def test_a_missing_field(name: str) -> None:
    error = refusal(*edited(lambda blob: blob.pop(name)))
    assert error.corruption_type is T.MISSING_FIELD
    assert error.message.startswith(f"Missing required field: {name}")


@pytest.mark.parametrize("crc", ["1", None, True, [], {}])
def test_a_crc_that_is_not_a_number(crc: Any) -> None:
    error = refusal(*edited(put("crc32", crc)))
    assert error.corruption_type is T.CRC_NOT_A_NUMBER
    assert error.message.startswith("crc32 field is not a number")


@pytest.mark.parametrize(
    "edit",
    [
        put("step_index", 3),
        put("step_index", 2.0),
        put("crc32", 0),
        put("crc32", 1.5),
        put("extra", 1),
        put("memory_context.working_data.$plane.step", 4),
        put("active_tools.0.result", None),
        put("memory_context.working_data.plan", orjson.loads("[" * 900 + "]" * 900)),
    ],
)
def test_a_crc_that_does_not_match(edit: Edit) -> None:
    made = sealed(plain())
    blob = orjson.loads(made.text)
    edit(blob)
    error = refusal(json.dumps(blob), made.mac)  # orjson would not write the deep one
    assert error.corruption_type is T.CRC_MISMATCH
    assert error.message.startswith("CRC mismatch: ")


def test_the_crc_message_has_both_sums() -> None:
    text, mac = edited(put("crc32", 5))
    stored = orjson.loads(sealed(plain()).text)["crc32"]
    message = refusal(text, mac).message
    assert message.startswith(f"CRC mismatch: stored=5, computed={stored}.")
    assert message.endswith("Checkpoint data has been modified or partially written.")


def test_an_edit_with_a_right_crc_is_found_by_the_hmac() -> None:
    text, _ = resealed(put("step_index", 3))
    for mac in (sealed(plain()).mac, None, b"", bytes(32)):
        error = refusal(text, mac)
        assert error.corruption_type is T.MAC_MISMATCH
        assert error.message.startswith("HMAC mismatch")


@pytest.mark.proves("S1.3")
def test_the_hmac_is_bound_to_the_job_and_to_the_key() -> None:
    made = sealed(plain())
    assert refusal(made.text, made.mac, job_id=UUID(int=99)).corruption_type is T.MAC_MISMATCH
    assert refusal(made.text, made.mac, key=b"other").corruption_type is T.MAC_MISMATCH
    other = seal(plain(), job_id=UUID(int=99), key=KEY)
    assert other.text == made.text
    assert other.mac != made.mac
    assert refusal(made.text, other.mac).corruption_type is T.MAC_MISMATCH


@pytest.mark.parametrize("version", [0, -1, 1.5, "1", None, True])
def test_a_version_that_is_none(version: Any) -> None:
    error = refusal(*resealed(put("schema_version", version)))
    assert error.corruption_type is T.INVALID_VERSION
    assert error.message.startswith("Invalid schema_version: ")


@pytest.mark.proves("S1.4")
def test_a_version_of_the_future_asks_for_the_newer_release() -> None:
    error = refusal(*resealed(put("schema_version", 3)))
    assert error.corruption_type is T.FUTURE_VERSION
    assert error.message.startswith("Checkpoint schema version 3 is newer than current version 1.")
    assert "rolled back" in error.message
    assert "newer release" in error.hint


def test_another_agent() -> None:
    made = sealed(plain())
    error = refusal(made.text, made.mac, agent_id=UUID(int=99))
    assert error.corruption_type is T.AGENT_MISMATCH
    assert error.message.startswith(f"Agent ID mismatch: checkpoint has {AGENT}, expected {UUID(int=99)}.")
    assert refusal(*resealed(put("agent_id", 5))).corruption_type is T.AGENT_MISMATCH


CURSOR = "memory_context.working_data.$plane"


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (put("unknown", 1), "$"),
        (put("checkpoint_id", "secret"), "$.checkpoint_id"),
        (put("created_at", "2026-01-01"), "$.created_at"),
        (put("step_index", -1), "$.step_index"),
        (put("step_id", ""), "$.step_id"),
        (put("status", "secret"), "$.status"),
        (put("active_tools", {}), "$.active_tools"),
        (put("active_tools.0.input_hash", "A" * 64), "$.active_tools[0].input_hash"),
        (put("active_tools.0.extra", 1), "$.active_tools[0]"),
        (put("memory_context", []), "$.memory_context"),
        (put("memory_context.working_data", None), "$.memory_context.working_data"),
        (put("memory_context.working_data", {}), "$.memory_context.working_data"),
        (put("memory_context.token_usage.prompt_tokens", -1), "$.memory_context.token_usage.prompt_tokens"),
        (put("execution_log.0.tool_calls", "secret"), "$.execution_log[0].tool_calls"),
        (put("execution_log.0.started_at", "now"), "$.execution_log[0].started_at"),
        (put(CURSOR, None), f"$.{CURSOR}"),
        (put(CURSOR, {}), f"$.{CURSOR}"),
        (put(f"{CURSOR}.step", -1), f"$.{CURSOR}.step"),
        (put(f"{CURSOR}.phase", "secret"), f"$.{CURSOR}.phase"),
        (put(f"{CURSOR}.invocation", "secret"), f"$.{CURSOR}.invocation"),
        (put(f"{CURSOR}.gates", {"a": "secret"}), f"$.{CURSOR}.gates.a"),
        (put(f"{CURSOR}.extra", 1), f"$.{CURSOR}"),
    ],
)
def test_a_shape_that_is_not_the_schemas_is_named_with_its_path(edit: Edit, path: str) -> None:
    error = refusal(*resealed(edit))
    assert error.corruption_type is T.INVALID_SCHEMA
    assert error.details["path"] == path
    assert f"`{path}`" in error.message
    assert "secret" not in error.message  # the value may be anybody's data


@pytest.mark.parametrize(
    "edit",
    [
        put("created_at", "2016-12-31T23:59:60Z"),
        put("step_index", 2**63),
        put("memory_context.token_usage.prompt_tokens", 2**63),
        put(f"{CURSOR}.message_seq", 2**63),
        put(f"{CURSOR}.gates", {"a": 2**63}),
        put("memory_context.working_data.$other", 1),
    ],
)
def test_what_the_schema_lets_pass_and_the_plane_cannot_read_is_corrupt_too(edit: Edit) -> None:
    assert refusal(*resealed(edit)).corruption_type is T.INVALID_SCHEMA


# Each fault is found before those below it.
FAULTS: list[tuple[CorruptionType, Edit]] = [
    (T.MISSING_FIELD, lambda blob: blob.pop("step_id")),
    (T.CRC_NOT_A_NUMBER, put("crc32", "x")),
    (T.CRC_MISMATCH, put("crc32", 1)),
    (T.MAC_MISMATCH, lambda blob: None),
    (T.INVALID_VERSION, put("schema_version", 0)),
    (T.FUTURE_VERSION, put("schema_version", 2)),
    (T.AGENT_MISMATCH, put("agent_id", str(UUID(int=99)))),
    (T.INVALID_SCHEMA, put("status", "x")),
]


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=lambda at: FAULTS[at][0])
@pytest.mark.proves("S1.3")
def test_of_several_faults_the_first_check_speaks(first: int) -> None:
    blob = orjson.loads(sealed(plain()).text)
    wrong = FAULTS[first:]
    kinds = [kind for kind, _ in wrong]
    for kind, edit in reversed(wrong):
        if kind not in (T.CRC_MISMATCH, T.CRC_NOT_A_NUMBER):
            edit(blob)
    blob["crc32"] = zlib.crc32(canonical({name: value for name, value in blob.items() if name != "crc32"}))
    for kind, edit in reversed(wrong):
        if kind in (T.CRC_MISMATCH, T.CRC_NOT_A_NUMBER):
            edit(blob)
    text = canonical(blob)
    mac = bytes(32) if T.MAC_MISMATCH in kinds else hmac.digest(KEY, JOB.bytes + text, "sha256")
    assert refusal(text, mac).corruption_type is kinds[0]


def test_missing_fields_are_named_in_the_order_of_the_spec() -> None:
    text, mac = edited(lambda blob: [blob.pop(name) for name in ("crc32", "agent_id", "schema_version")])
    assert "schema_version" in refusal(text, mac).message


# Versions


def with_mood(blob: dict[str, Any]) -> dict[str, Any]:
    return {**blob, "mood": "calm"}


def schema_2() -> dict[str, Any]:
    made = schema()
    made["required"].append("mood")
    made["properties"]["mood"] = {"type": "string"}
    made["$id"] = made["$id"].replace("v1", "v2")
    return made


@pytest.mark.proves("S1.4")
def test_a_required_field_of_version_2_is_supplied_by_its_migration() -> None:
    made = sealed(plain())
    assert opened(made.text, made.mac, migrations={1: with_mood}, current=2, schema=schema_2()) == plain()
    error = refusal(made.text, made.mac, migrations={1: lambda b: b}, current=2, schema=schema_2())
    assert error.corruption_type is T.INVALID_SCHEMA


def test_migrations_run_one_version_at_a_time() -> None:
    seen: list[int] = []

    def noting(blob: dict[str, Any]) -> dict[str, Any]:
        seen.append(blob["schema_version"])
        return blob

    registry: dict[int, Migration] = dict.fromkeys(range(1, 9), noting)
    assert migrate({"schema_version": 2}, registry, 5) == {"schema_version": 5}
    assert seen == [2, 3, 4]


def test_a_version_without_a_migration_fails() -> None:
    made = sealed(plain())
    error = refusal(made.text, made.mac, migrations={1: with_mood}, current=3)
    assert error.corruption_type is T.NO_MIGRATION
    assert error.message.startswith("No migration from checkpoint schema version 2 to 3.")
    assert "cortex job resubmit" in error.hint


def test_the_seal_is_checked_before_any_migration_runs() -> None:
    def never(blob: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError(blob)

    text, mac = edited(put("step_index", 3))
    assert refusal(text, mac, migrations={1: never}, current=2).corruption_type is T.CRC_MISMATCH


def test_there_is_a_migration_for_every_version_before_the_current_one() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))


def test_the_schema_given_away_is_a_copy() -> None:
    schema()["required"].clear()
    assert len(schema()["required"]) == 11
    assert schema()["$id"] == "https://cortex-plane.dev/schemas/checkpoint/v1.json"
    assert jsonschema_rs.meta.is_valid(schema())


@holds_for(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), few=30, many=300)
def test_no_object_whatever_opens_or_breaks_the_opening(blob: dict[str, Any]) -> None:
    with pytest.raises(CheckpointCorrupt):
        opened(canonical({key: value for key, value in blob.items() if "\x00" not in key}), b"")


# Every field, every wrong type ---------------------------------------------------------------------------------------


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The whole, and every field in it."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from paths(item, (*path, key))


WRONG: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    -0.0,
    1e-6,
    1e20,
    2**53 + 1,
    2**63,
    "",
    "1",
    "text",
    [],
    [1],
    {},
    {"a": 1},
)
GONE = object()


def same_type(one: Any, other: Any) -> bool:
    return type(one) is type(other)


def replaced(blob: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    copy: Any = dict(blob) if isinstance(blob, dict) else list(blob)
    if not rest and value is GONE:
        del copy[first]
    else:
        copy[first] = replaced(copy[first], tuple(rest), value)
    return copy


@pytest.mark.proves("S1.200")
def test_every_field_with_every_wrong_type_is_corrupt_and_nothing_else() -> None:
    """About two thousand blobs: each as somebody left it in the database, and each with its seals made right."""
    blob = orjson.loads(sealed(plain()).written)
    blob["execution_log"] = orjson.loads(orjson.dumps([log_entry()], option=orjson.OPT_UTC_Z))
    text, right_mac = sealed_right(blob)
    opened(text, right_mac)
    blob, looked_at = orjson.loads(text), 0
    for path in paths(blob):
        for value in (*WRONG, *((GONE,) if path else ())):
            damaged = replaced(blob, path, value)
            if (
                value is not GONE
                and damaged == blob
                and same_type(value, functools.reduce(operator.getitem, path, blob))
            ):
                continue
            refusal(orjson.dumps(damaged), right_mac)
            looked_at += 1
            if not isinstance(damaged, dict) or path == ("crc32",):
                continue
            try:
                text, mac = sealed_right(damaged)
            except InvalidInput:
                continue  # what is never sealed
            try:
                progress = opened(text, mac)
            except CheckpointCorrupt as error:
                assert error.corruption_type in CorruptionType  # noqa: PT017 -- nothing else may be raised
            else:
                # The schema lets it pass: then it can be sealed again as it is.
                assert path, "the whole is never something else"
                opened(*(lambda again: (again.written, again.mac))(sealed(progress)))
    assert looked_at > 900


def sealed_right(blob: dict[str, Any]) -> tuple[bytes, bytes]:
    plain_blob = {name: value for name, value in blob.items() if name != "crc32"}
    text = canonical({**plain_blob, "crc32": zlib.crc32(canonical(plain_blob))})
    return text, hmac.digest(KEY, JOB.bytes + text, "sha256")
