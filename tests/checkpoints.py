"""Checkpoints for tests: a plain one, and strategies for any."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from cortex_plane.jobs.model.checkpoints import (
    ActiveTool,
    Checkpoint,
    CheckpointStatus,
    Cursor,
    LogEntry,
    Phase,
    SealedCheckpoint,
    TokenUsage,
    ToolStatus,
    agent_data,
    seal,
)
from cortex_plane.jobs.rules.recovery import open_sealed
from cortex_plane.kernel.canonical import canonical

JOB, AGENT, KEY = UUID(int=7), UUID(int=8), b"k" * 32
NOW = datetime(2026, 3, 15, 12, 30, 0, 250_000, tzinfo=UTC)
HASH = "0123456789abcdef" * 4


def plain(**changes: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "checkpoint_id": UUID(int=9), "agent_id": AGENT, "created_at": NOW, "step_index": 2, "step_id": "deploy",
        "status": CheckpointStatus.IN_PROGRESS,
        "cursor": Cursor(
            step=3, phase=Phase.TOOLS, message_seq=5, iterations=4, invocation=UUID(int=3), gates={"budget": 1}
        ),
        "system_prompt_hash": HASH,
        "active_tools": (tool(),),
        "working_data": agent_data({"plan": {"b": [1, 2.5], "a": None}, "!": "sorts before $"}),
        "accumulated_facts": ("staging is up",),
        "conversation_summary": "We deploy.",
        "token_usage": TokenUsage(prompt_tokens=10, completion_tokens=20),
        "execution_log": (log_entry(),),
    }  # fmt: skip
    return Checkpoint(**{**fields, **changes})


def tool(**changes: Any) -> ActiveTool:
    fields: dict[str, Any] = {
        "tool_name": "kubectl", "invocation_id": UUID(int=3), "status": ToolStatus.COMPLETED, "input_hash": HASH,
        "result": canonical({"ok": True}),
    }  # fmt: skip
    return ActiveTool(**{**fields, **changes})


def log_entry(**changes: Any) -> LogEntry:
    fields: dict[str, Any] = {
        "step_index": 1, "step_id": "build", "started_at": NOW - timedelta(seconds=9), "finished_at": NOW,
        "result_summary": "Built it.", "tool_calls": 2,
    }  # fmt: skip
    return LogEntry(**{**fields, **changes})


def sealed(checkpoint: Checkpoint) -> SealedCheckpoint:
    return seal(checkpoint, job_id=JOB, key=KEY)


def opened(text: str | bytes, mac: bytes | None, **changes: Any) -> Checkpoint:
    return open_sealed(
        text, mac=mac, **{"job_id": JOB, "agent_id": AGENT, "key": KEY, "migrations": {}, **changes}
    )


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
NAMES = TEXT.filter(bool)
COUNTS = st.integers(0, 2**63 - 1)
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
TIMES = st.datetimes(
    datetime(2, 1, 1),
    datetime(9998, 1, 1),
    timezones=st.just(UTC) | st.integers(-86_000, 86_000).map(lambda s: timezone(timedelta(seconds=s))),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(2**53, 2**70)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
TOOLS = st.builds(
    ActiveTool,
    tool_name=NAMES,
    invocation_id=st.uuids(),
    status=st.sampled_from(ToolStatus),
    input_hash=HASHES,
    result=st.none() | VALUES.map(canonical),
)
LOG_ENTRIES = st.builds(
    LogEntry,
    step_index=COUNTS,
    step_id=NAMES,
    started_at=TIMES,
    finished_at=TIMES,
    result_summary=TEXT,
    tool_calls=COUNTS,
)
CURSORS = st.builds(
    Cursor,
    step=COUNTS,
    phase=st.sampled_from(Phase),
    message_seq=COUNTS,
    iterations=COUNTS,
    invocation=st.none() | st.uuids(),
    gates=st.dictionaries(TEXT, COUNTS, max_size=3),
)
AGENT_DATA = st.dictionaries(TEXT.filter(lambda key: not key.startswith("$")), VALUES, max_size=4)
CHECKPOINTS = st.builds(
    Checkpoint,
    checkpoint_id=st.uuids(),
    agent_id=st.just(AGENT),
    created_at=TIMES,
    step_index=COUNTS,
    step_id=NAMES,
    status=st.sampled_from(CheckpointStatus),
    cursor=CURSORS,
    system_prompt_hash=HASHES,
    active_tools=st.lists(TOOLS, max_size=3).map(tuple),
    working_data=AGENT_DATA.map(agent_data),
    accumulated_facts=st.lists(TEXT, max_size=3).map(tuple),
    conversation_summary=st.none() | TEXT,
    token_usage=st.builds(TokenUsage, prompt_tokens=COUNTS, completion_tokens=COUNTS),
    execution_log=st.lists(LOG_ENTRIES, max_size=3).map(tuple),
)
