"""Reading a checkpoint back: versions, integrity, and what is corrupt."""

from __future__ import annotations

import functools
import hmac
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from cortex_plane.jobs.model.checkpoints import (
    PLANE_KEY,
    SCHEMA_VERSION,
    ActiveTool,
    Blob,
    Checkpoint,
    CheckpointStatus,
    Cursor,
    LogEntry,
    Phase,
    TokenUsage,
    ToolStatus,
    mac_of,
    schema,
)
from cortex_plane.kernel.errors import CortexError, InvalidInput

if TYPE_CHECKING:
    from jsonschema_rs import Validator

Migration = Callable[[Blob], Blob]

MIGRATIONS: dict[int, Migration] = {}
"""By the version they start from; each leads to the next one."""

_FIELDS = (
    "checkpoint_id", "schema_version", "agent_id", "created_at", "step_index", "step_id", "status", "active_tools",
    "memory_context", "execution_log", "crc32",
)  # fmt: skip


class CorruptionType(StrEnum):
    NOT_AN_OBJECT = "not_an_object"
    MISSING_FIELD = "missing_field"
    CRC_NOT_A_NUMBER = "crc_not_a_number"
    CRC_MISMATCH = "crc_mismatch"
    MAC_MISMATCH = "mac_mismatch"
    INVALID_VERSION = "invalid_version"
    FUTURE_VERSION = "future_version"
    NO_MIGRATION = "no_migration"
    AGENT_MISMATCH = "agent_mismatch"
    INVALID_SCHEMA = "invalid_schema"


class CheckpointCorrupt(CortexError):
    code = "checkpoint_corrupt"
    http_status = 409
    default_hint = (
        "The job is failed and its checkpoint left as it is, never repaired. Find out who or what changed it, "
        "then start the work again with `cortex job resubmit`."
    )

    def __init__(
        self,
        message: str,
        *,
        corruption_type: CorruptionType = CorruptionType.INVALID_SCHEMA,
        code: str | None = None,
        hint: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, code=code, hint=hint, corruption_type=corruption_type, **details)
        self.corruption_type = corruption_type


def open_sealed(
    text: str | bytes,
    *,
    mac: bytes | None,
    job_id: UUID,
    agent_id: UUID,
    key: bytes,
    migrations: Mapping[int, Migration] = MIGRATIONS,
    current: int = SCHEMA_VERSION,
    schema: Blob | None = None,
) -> Checkpoint:
    """The checkpoint that was sealed, or `CheckpointCorrupt` for the first check that fails."""
    blob = _object(text)
    for name in _FIELDS:
        if name not in blob:
            raise _corrupt(CorruptionType.MISSING_FIELD, f"Missing required field: {name}.")
    _check_crc(blob)
    _check_mac(blob, mac, job_id, key)
    _check_version(blob, current)
    blob = migrate(blob, migrations, current)
    if blob["agent_id"] != str(agent_id):
        message = f"Agent ID mismatch: checkpoint has {_short(blob['agent_id'])}, expected {agent_id}."
        raise _corrupt(CorruptionType.AGENT_MISMATCH, f"{message} Wrong agent processing this job?")
    _check_schema(blob, schema)
    try:
        return _read(blob)
    except (ValueError, InvalidInput) as error:
        # The schema lets it pass and Python does not: a leap second, a counter beyond 63 bits.
        raise _corrupt(CorruptionType.INVALID_SCHEMA, f"Checkpoint does not fit its schema: {error}") from error


def check_seal(text: str, mac: bytes | None, job_id: UUID, key: bytes | None) -> None:
    """Raises `CheckpointCorrupt` where this is not what the plane sealed for this job; without ``key`` only the sum is checked."""
    blob = _object(text)
    if "crc32" not in blob:
        raise _corrupt(CorruptionType.MISSING_FIELD, "Missing required field: crc32.")
    _check_crc(blob)
    if key is not None:
        _check_mac(blob, mac, job_id, key)


def renew_mac(text: str, mac: bytes | None, job_id: UUID, old_key: bytes, new_key: bytes) -> bytes | None:
    """The MAC with a new key; None where the checkpoint is not what the plane sealed with the old one."""
    try:
        check_seal(text, mac, job_id, old_key)
    except CheckpointCorrupt:
        return None
    return mac_of(_rewritten(_object(text)), job_id, new_key)


def migrate(blob: Blob, migrations: Mapping[int, Migration] = MIGRATIONS, current: int = SCHEMA_VERSION) -> Blob:
    """Forward only, one version at a time."""
    for version in range(blob["schema_version"], current):
        if version not in migrations:
            raise _corrupt(
                CorruptionType.NO_MIGRATION,
                f"No migration from checkpoint schema version {version} to {version + 1}. Cannot resume the job.",
                "The job is failed. Run a release that still has this migration, or start the work again with "
                "`cortex job resubmit`.",
            )
        blob = {**migrations[version](blob), "schema_version": version + 1}
    return blob


def _object(text: str | bytes) -> Blob:
    try:
        blob = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        message = f"Checkpoint is not a JSON object: {error}."
        raise _corrupt(CorruptionType.NOT_AN_OBJECT, message) from error
    if not isinstance(blob, dict):
        raise _corrupt(CorruptionType.NOT_AN_OBJECT, "Checkpoint is not a JSON object.")
    return blob


def _check_crc(blob: Blob) -> None:
    sum_in_blob = blob["crc32"]
    if isinstance(sum_in_blob, bool) or not isinstance(sum_in_blob, int | float):
        message = f"crc32 field is not a number: {type(sum_in_blob).__name__}."
        raise _corrupt(CorruptionType.CRC_NOT_A_NUMBER, message)
    sum_of_blob = zlib.crc32(_rewritten({name: value for name, value in blob.items() if name != "crc32"}))
    if sum_in_blob != sum_of_blob:
        message = f"CRC mismatch: stored={sum_in_blob}, computed={sum_of_blob}."
        cause = "Checkpoint data has been modified or partially written."
        raise _corrupt(CorruptionType.CRC_MISMATCH, f"{message} {cause}")


def _check_mac(blob: Blob, mac: bytes | None, job_id: UUID, key: bytes) -> None:
    if mac is None:
        raise _corrupt(CorruptionType.MAC_MISMATCH, "HMAC mismatch: the checkpoint has none.")
    if not hmac.compare_digest(mac, mac_of(_rewritten(blob), job_id, key)):
        message = "HMAC mismatch: the checkpoint was not written by the plane, for another job, or with another key."
        raise _corrupt(CorruptionType.MAC_MISMATCH, message)


def _rewritten(value: Any) -> bytes:
    """The bytes that were sealed. No walk is needed: what `canonical` wrote comes back from JSONB in normal form,
    and a number that does not (1.0 for 1) was put there by hand and should be noticed."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        message = f"CRC mismatch: the checkpoint cannot be serialised ({error}), so it was never sealed."
        raise _corrupt(CorruptionType.CRC_MISMATCH, message) from error


def _check_version(blob: Blob, current: int) -> None:
    version = blob["schema_version"]
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise _corrupt(CorruptionType.INVALID_VERSION, f"Invalid schema_version: {_short(version)}.")
    if version > current:
        message = f"Checkpoint schema version {version} is newer than current version {current}."
        raise _corrupt(
            CorruptionType.FUTURE_VERSION,
            f"{message} Cannot downgrade. Was a deployment rolled back?",
            "The job is failed. Run the newer release again, then start the work again with `cortex job resubmit`.",
        )


def _check_schema(blob: Blob, schema: Blob | None) -> None:
    from jsonschema_rs import ValidationError  # its import takes 50 ms, and most processes open no checkpoint

    try:
        (_published() if schema is None else _validator(schema)).validate(blob)
    except ValidationError as error:
        path = "$" + "".join(f"[{at}]" if isinstance(at, int) else f".{at[:50]}" for at in error.instance_path)
        message = f"Checkpoint does not fit its schema at `{path}`: {error.message}."
        raise _corrupt(CorruptionType.INVALID_SCHEMA, message, path=path) from error


def _corrupt(kind: CorruptionType, message: str, hint: str | None = None, **details: Any) -> CheckpointCorrupt:
    return CheckpointCorrupt(message, corruption_type=kind, hint=hint, **details)


def _short(value: Any) -> str:
    return str(value)[:50]


_COUNT = {"type": "integer", "minimum": 0}
_CURSOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["gates", "invocation", "iterations", "message_seq", "phase", "step"],
    "properties": {
        "gates": {"type": "object", "additionalProperties": _COUNT},
        "invocation": {"type": ["string", "null"], "format": "uuid"},
        "iterations": _COUNT,
        "message_seq": _COUNT,
        "phase": {"enum": list(Phase)},
        "step": _COUNT,
        "window_step": _COUNT,
        "window_seq": _COUNT,
    },
}


def _within(name: str, inner: Blob) -> Blob:
    return {"required": [name], "properties": {name: inner}}


def _validator(schema: Blob) -> Validator:
    """The given schema, and the cursor's shape, of which the published schema does not speak."""
    from jsonschema_rs import validator_for

    cursor = _within("memory_context", _within("working_data", _within(PLANE_KEY, _CURSOR)))
    # Masked, because the message goes to logs and the job's error, and the value may be anybody's data.
    return validator_for({"allOf": [schema, cursor]}, validate_formats=True, mask="the value")


@functools.cache
def _published() -> Validator:
    return _validator(schema())


# Reading


def _read(blob: Blob) -> Checkpoint:
    memory = blob["memory_context"]
    working = dict(memory["working_data"])
    cursor = _cursor_read(working.pop(PLANE_KEY))
    return Checkpoint(
        checkpoint_id=UUID(blob["checkpoint_id"]),
        agent_id=UUID(blob["agent_id"]),
        created_at=datetime.fromisoformat(blob["created_at"]),
        step_index=blob["step_index"],
        step_id=blob["step_id"],
        status=CheckpointStatus(blob["status"]),
        cursor=cursor,
        system_prompt_hash=memory["system_prompt_hash"],
        active_tools=tuple(_tool_read(tool) for tool in blob["active_tools"]),
        working_data={name: _rewritten(value) for name, value in working.items()},
        accumulated_facts=tuple(memory.get("accumulated_facts", ())),
        conversation_summary=memory.get("conversation_summary"),
        token_usage=TokenUsage(**memory["token_usage"]),
        execution_log=tuple(_log_entry_read(entry) for entry in blob["execution_log"]),
    )


def _cursor_read(cursor: Blob) -> Cursor:
    invocation = cursor["invocation"]
    return Cursor(
        step=cursor["step"],
        phase=Phase(cursor["phase"]),
        message_seq=cursor["message_seq"],
        iterations=cursor["iterations"],
        invocation=None if invocation is None else UUID(invocation),
        gates=cursor["gates"],
        window_step=cursor.get("window_step", 0),
        window_seq=cursor.get("window_seq", 0),
    )


def _tool_read(tool: Blob) -> ActiveTool:
    return ActiveTool(
        tool_name=tool["tool_name"],
        invocation_id=UUID(tool["invocation_id"]),
        status=ToolStatus(tool["status"]),
        input_hash=tool["input_hash"],
        result=_rewritten(tool.get("result")),
    )


def _log_entry_read(entry: Blob) -> LogEntry:
    times = {name: datetime.fromisoformat(entry[name]) for name in ("started_at", "finished_at")}
    return LogEntry(**{**entry, **times})
