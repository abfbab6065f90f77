"""The checkpoint of a job: how it is sealed with every step, and opened again.

A sealed checkpoint is canonical JSON, so that it is the same bytes after a trip through JSONB. Its CRC-32 stands
in it and finds accidents. Its HMAC stands beside it, is bound to the job, and finds edits by whoever can compute
a CRC.

It is checked against the published schema, and against the bounds of the database's integers, when it is opened.
"""

from __future__ import annotations

import functools
import hmac
import importlib.resources
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from cortex_plane.jobs.model.effects import IN_DOUBT, SETTLED, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.state import refuse_reserved
from cortex_plane.kernel.canonical import canonical, check_text
from cortex_plane.kernel.errors import CortexError, InvalidInput, TooLarge

if TYPE_CHECKING:
    from jsonschema_rs import Validator


SCHEMA_VERSION = 1
WARN_BYTES = 512 * 1024
MAX_BYTES = 1024 * 1024
COUNT_LIMIT = 2**63
SHOWN_BYTES = 2048
"""A result up to this size stands in the checkpoint until its step is over; its row has it anyway."""

Blob = dict[str, Any]

Memory = tuple[str | None, tuple[str, ...], Mapping[str, bytes]]
"""The summary of a job's conversation, its facts, and the agent's own data."""

NO_JOB = UUID(int=0)
NEVER = datetime.min.replace(tzinfo=UTC)
PLANE_KEY = "$plane"
"""The plane's entry in `working_data`."""

_HASH = re.compile("[a-f0-9]{64}")
_COUNTS = (
    "step", "message_seq", "iterations", "window_step", "window_seq", "step_index", "prompt_tokens", "completion_tokens",
)  # fmt: skip
_WRITTEN = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z


class CheckpointStatus(StrEnum):
    IN_PROGRESS = "in_progress"
    AWAITING_APPROVAL = "awaiting_approval"
    COMPLETED = "completed"
    FAILED = "failed"


class ToolStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Phase(StrEnum):
    MODEL = "model"
    """About to ask the model for this step."""
    TOOLS = "tools"
    """The model's response is recorded; its calls are being resolved."""
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveTool:
    tool_name: str
    invocation_id: UUID
    status: ToolStatus
    input_hash: str
    result: bytes | None = None
    """Canonical JSON. A result that is JSON's null is none: the blob has one form for both."""

    def __post_init__(self) -> None:
        if not check_text(self.tool_name, "tool_name"):
            raise InvalidInput("`tool_name` is empty.", field="tool_name")
        if not _HASH.fullmatch(self.input_hash):
            words = "`input_hash` is not a SHA-256 in 64 lower-case hexadecimal digits."
            raise InvalidInput(words, field="input_hash")
        if self.result == b"null":
            object.__setattr__(self, "result", None)


@dataclass(slots=True)
class Progress:
    """Where a job stands: read from its checkpoint, changed in place while it runs, and sealed with every write without a copy."""

    agent_id: UUID
    system_prompt_hash: str
    step: int = 0
    """Where the plane resumes. It is explicit, because `step_index + 1` would skip a call that waits for approval."""
    phase: Phase = Phase.MODEL
    message_seq: int = 0
    """How far the session's messages were read."""
    iterations: int = 0
    """Model responses so far in this job."""
    invocation: UUID | None = None
    """The call under way."""
    gates: Mapping[str, int] = field(default_factory=dict)
    window_step: int = 0
    """Steps below this one are covered by the summary and the facts."""
    window_seq: int = 0
    """So are messages up to this one."""
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    step_index: int = 0
    """For display. The plane resumes from `step`."""
    step_id: str = "start"
    active_tools: tuple[ActiveTool, ...] = ()
    working_data: Mapping[str, bytes] = field(default_factory=dict)
    """The agent's own entries, each as canonical JSON; the plane's entry is not among them."""
    accumulated_facts: tuple[str, ...] = ()
    conversation_summary: str | None = None
    prompt_tokens: int = 0
    """Of the whole job so far, as the completion tokens."""
    completion_tokens: int = 0
    checkpoint_id: UUID = NO_JOB
    created_at: datetime = NEVER

    @property
    def memory(self) -> Memory:
        """What changes more rarely than the rest, and is stored beside it."""
        return self.conversation_summary, self.accumulated_facts, self.working_data

    def memory_json(self) -> str:
        """Refuses what cannot be stored."""
        check_memory(*self.memory)
        values = {
            "accumulated_facts": self.accumulated_facts,
            "conversation_summary": self.conversation_summary,
            "working_data": {name: orjson.Fragment(value) for name, value in self.working_data.items()},
        }
        return orjson.dumps(values).decode()

    def end_step(self, index: int, step_id: str) -> None:
        self.step_index, self.step_id = index, step_id


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedCheckpoint:
    written: bytes
    stored: str
    """Without the job's memory, which is stored beside it (`Progress.memory_json`). `whole_checkpoint` in the database puts it in."""
    mac: bytes
    size: int
    """In bytes of UTF-8; above `WARN_BYTES` it deserves a warning."""

    @property
    def text(self) -> str:
        return self.written.decode()


def schema() -> Blob:
    """The published JSON Schema of the blob."""
    name = f"checkpoint.v{SCHEMA_VERSION}.schema.json"
    document: Blob = orjson.loads(importlib.resources.files(__package__).joinpath(name).read_bytes())
    return document


_STATUS_OF_JOB = {
    JobStatus.WAITING_FOR_APPROVAL: CheckpointStatus.AWAITING_APPROVAL,
    JobStatus.COMPLETED: CheckpointStatus.COMPLETED,
    JobStatus.FAILED: CheckpointStatus.FAILED,
    JobStatus.CANCELLED: CheckpointStatus.FAILED,
}


def current_tools(
    tools: Iterable[ActiveTool], calls: Iterable[ToolCall], *, with_results: bool
) -> tuple[ActiveTool, ...]:
    """The tools of a checkpoint as the rows of their calls have them by now, and calls that were begun since."""
    by_id = {call.id: call for call in calls}
    current = [_current_tool(by_id.pop(tool.invocation_id, None), tool, with_results) for tool in tools]
    return (*current, *(_tool_of(call, with_results) for call in by_id.values()))


def _current_tool(call: ToolCall | None, tool: ActiveTool, with_results: bool) -> ActiveTool:
    return tool if call is None else _tool_of(call, with_results)


def _tool_of(call: ToolCall, with_result: bool) -> ActiveTool:
    status, content = ToolStatus.PENDING, None
    if call.status in IN_DOUBT:
        status = ToolStatus.RUNNING
    elif call.status is CallStatus.COMPLETED:
        status, content = ToolStatus.COMPLETED, canonical(call.result)
    elif call.status in SETTLED:
        status, content = ToolStatus.FAILED, canonical({"error": call.error})
    result = content if with_result and content is not None and len(content) <= SHOWN_BYTES else None
    return ActiveTool(
        tool_name=call.tool_name, invocation_id=call.id, status=status, input_hash=call.input_hash, result=result
    )


def tool_ids(blob: Any) -> list[UUID]:
    """The calls that a checkpoint names; of a damaged one, none."""
    try:
        return [UUID(tool["invocation_id"]) for tool in blob["active_tools"]]
    except (TypeError, KeyError, ValueError, AttributeError):
        return []


def as_shown(blob: Blob, status: JobStatus, calls: Iterable[ToolCall], log: Iterable[Mapping[str, Any]]) -> Blob:
    """A checkpoint as people read it: with the log of its steps, its calls as they stand, and the status of its job, whose rows have
    them, so they are not written with each step. One that is damaged is shown as it was found."""
    try:
        check_seal(orjson.dumps(blob).decode(), None, NO_JOB, None)
        tools = [_tool_read(tool) for tool in blob["active_tools"]]
        phase, own_status = blob["memory_context"]["working_data"][PLANE_KEY]["phase"], CheckpointStatus(blob["status"])
    except (CheckpointCorrupt, InvalidInput, TypeError, KeyError, ValueError):
        return blob
    if own_status is CheckpointStatus.AWAITING_APPROVAL:
        own_status = CheckpointStatus.IN_PROGRESS  # somebody decided, and no worker has gone on yet
    tools_now = current_tools(tools, calls, with_results=phase == Phase.TOOLS)
    current = {
        **{name: value for name, value in blob.items() if name != "crc32"},
        "active_tools": [_tool_written(tool) for tool in tools_now],
        "execution_log": [dict(entry) for entry in log],
        "status": _STATUS_OF_JOB.get(status, own_status),
    }
    shown: Blob = orjson.loads(orjson.dumps(current, option=_WRITTEN))
    return {**shown, "crc32": zlib.crc32(_rewritten(shown))}


def _tool_written(tool: ActiveTool) -> Blob:
    return {
        "input_hash": tool.input_hash,
        "invocation_id": str(tool.invocation_id),  # the driver's UUID is a subclass that orjson refuses
        "result": None if tool.result is None else orjson.Fragment(tool.result),
        "status": tool.status,
        "tool_name": tool.tool_name,
    }


def seal(progress: Progress, *, job_id: UUID, key: bytes) -> SealedCheckpoint:
    """Every step waits for this: what is canonical already is put in as it is, and nothing is written twice."""
    # `crc32` sorts between these two parts, so it can be put in after the sum over both is known.
    head = orjson.dumps(
        {
            "active_tools": [_tool_written(tool) for tool in progress.active_tools],
            "agent_id": str(progress.agent_id),
            "checkpoint_id": str(progress.checkpoint_id),
        }
    )
    tail_values = {
        "created_at": progress.created_at.astimezone(UTC),
        "execution_log": (),  # made where the checkpoint is read
        "memory_context": _memory_written(progress, with_memory=True),
        "schema_version": SCHEMA_VERSION,
        "status": progress.status,
        "step_id": progress.step_id,
        "step_index": progress.step_index,
    }
    tail = orjson.dumps(tail_values, option=_WRITTEN)
    head_part, tail_part = memoryview(head)[:-1], memoryview(tail)[1:]  # without the braces between them
    crc = zlib.crc32(tail_part, zlib.crc32(b",", zlib.crc32(head_part)))
    written = stored = b"".join((head_part, b',"crc32":%d,' % crc, tail_part))
    if len(written) > MAX_BYTES:
        raise _too_large(progress, len(written))
    if progress.conversation_summary is not None or progress.accumulated_facts or progress.working_data:
        tail_values["memory_context"] = _memory_written(progress, with_memory=False)
        tail_part = memoryview(orjson.dumps(tail_values, option=_WRITTEN))[1:]
        stored = b"".join((head_part, b',"crc32":%d,' % crc, tail_part))
    return SealedCheckpoint(
        written=written, stored=stored.decode(), mac=mac_of(written, job_id, key), size=len(written)
    )


def mac_of(written: bytes, job_id: UUID, key: bytes) -> bytes:
    """Bound to the job, so that a checkpoint cannot be moved to another one."""
    return hmac.digest(key, job_id.bytes + written, "sha256")


def _memory_written(progress: Progress, *, with_memory: bool) -> Blob:
    working: Blob = {}
    if with_memory:
        working = {name: orjson.Fragment(value) for name, value in progress.working_data.items()}
    working[PLANE_KEY] = {
        "gates": dict(progress.gates),
        "invocation": None if progress.invocation is None else str(progress.invocation),
        "iterations": progress.iterations,
        "message_seq": progress.message_seq,
        "phase": progress.phase,
        "step": progress.step,
        # Only where there is something to say: whoever knew no windows reads the rest as it is.
        **({"window_step": progress.window_step} if progress.window_step else {}),
        **({"window_seq": progress.window_seq} if progress.window_seq else {}),
    }
    return {
        "accumulated_facts": progress.accumulated_facts if with_memory else (),
        "conversation_summary": progress.conversation_summary if with_memory else None,
        "system_prompt_hash": progress.system_prompt_hash,
        "token_usage": {"completion_tokens": progress.completion_tokens, "prompt_tokens": progress.prompt_tokens},
        "working_data": working,
    }


def _too_large(progress: Progress, size: int) -> TooLarge:
    sizes = {f"working_data.{name[:50]}": len(value) for name, value in progress.working_data.items()}
    for tool in progress.active_tools:
        sizes[f"the result of {tool.tool_name[:50]} ({tool.invocation_id})"] = len(tool.result or b"")
    sizes["accumulated_facts"] = sum(len(fact.encode()) for fact in progress.accumulated_facts)
    sizes["conversation_summary"] = len((progress.conversation_summary or "").encode())
    largest = max(sizes, key=sizes.__getitem__)
    return TooLarge(
        f"The checkpoint is {size} bytes; the limit is {MAX_BYTES}. "
        f"Its largest part is {largest} with {sizes[largest]} bytes.",
        code="checkpoint_too_large",
        hint="Store large data elsewhere and keep a reference to it; drop entries that are no longer needed.",
        size=size,
    )


def _check_count(value: int, name: str) -> None:
    if not 0 <= value < COUNT_LIMIT:
        raise InvalidInput(f"`{name}` is {value}; it must be between 0 and 2^63 - 1.", field=name)


def check_memory(summary: str | None, facts: Iterable[str], working_data: Iterable[str]) -> None:
    for key in working_data:
        refuse_reserved(key)
    if summary is not None:
        check_text(summary, "conversation_summary")
    for index, fact in enumerate(facts):
        check_text(fact, f"accumulated_facts[{index}]")


Migration = Callable[[Blob], Blob]

MIGRATIONS: dict[int, Migration] = {}
"""By the version they start from; each leads to the next one."""

_FIELDS = (
    "checkpoint_id", "schema_version", "agent_id", "created_at", "step_index", "step_id", "status", "active_tools",
    "memory_context", "execution_log", "crc32",
)  # fmt: skip


class CorruptionType(StrEnum):
    CHECKPOINT_MISSING = "checkpoint_missing"
    """The job had one: it has steps or calls."""
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
) -> Progress:
    """The state that was sealed, or `CheckpointCorrupt` for the first check that fails."""
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


def missing_checkpoint() -> CheckpointCorrupt:
    return _corrupt(CorruptionType.CHECKPOINT_MISSING, "The checkpoint is gone, and the job has begun.")


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
        raise _corrupt(CorruptionType.NOT_AN_OBJECT, f"Checkpoint is not a JSON object: {error}.") from error
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


def _read(blob: Blob) -> Progress:
    memory = blob["memory_context"]
    working = dict(memory["working_data"])
    cursor = working.pop(PLANE_KEY)
    invocation = cursor["invocation"]
    progress = Progress(
        checkpoint_id=UUID(blob["checkpoint_id"]),
        agent_id=UUID(blob["agent_id"]),
        created_at=datetime.fromisoformat(blob["created_at"]),
        step_index=blob["step_index"],
        step_id=blob["step_id"],
        status=CheckpointStatus(blob["status"]),
        system_prompt_hash=memory["system_prompt_hash"],
        active_tools=tuple(_tool_read(tool) for tool in blob["active_tools"]),
        working_data={name: _rewritten(value) for name, value in working.items()},
        accumulated_facts=tuple(memory.get("accumulated_facts", ())),
        conversation_summary=memory.get("conversation_summary"),
        **memory["token_usage"],
        **{**cursor, "phase": Phase(cursor["phase"]), "invocation": UUID(invocation) if invocation else None},
    )
    check_memory(*progress.memory)
    for name in _COUNTS:
        _check_count(getattr(progress, name), name)
    for gate, times in progress.gates.items():
        _check_count(times, f"gates.{gate}")
    return progress


def _tool_read(tool: Blob) -> ActiveTool:
    values = {"invocation_id": UUID(tool["invocation_id"]), "status": ToolStatus(tool["status"])}
    return ActiveTool(**{**tool, **values, "result": _rewritten(tool.get("result"))})
