"""What a plane and a worker without a database say to each other, and the link that carries it.

The attempt runs in the plane: it claims jobs, judges calls, and writes intents and outcomes. The worker runs functions. It says first
what it offers (`Hello`), then sends a `Beat` again and again, and answers each `Invoke` with one `Returned` or `Failed`. A `ServerChange` says what has
changed of an MCP server beside it. Everything else is the plane's.

No clocks are compared. A call may begin before a reading of the worker's own clock (`Invoke.begin_before`): the newest reading that the
plane had, plus the time that was left when it arrived. So a worker that was stopped, or a message that was held up, never begins late.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Protocol
from uuid import UUID

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cortex_plane.agents.model.tools import MAX_NAME, MAX_TIMEOUT, MIN_TIMEOUT, OnUncertain
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import Risk, Slug

VERSION: Final = 1
"""Of the protocol. Both sides must speak the same one."""
LINK_PATH: Final = "/v1/workers/link"
"""Where a worker opens its link: an upgrade of an HTTP request to WebSocket, with a worker key."""
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
MAX_RESULT_BYTES: Final = 8 * 1024 * 1024
"""A result that is larger is not sent: its beginning is."""
MAX_CONCURRENCY: Final = 256
"""Jobs at a time over one connection."""
MAX_TOOLS, MAX_APPS, MAX_SERVERS = 500, 50, 50
MAX_STATE_CHANGES: Final = 2000
"""Entries of the agent's state that one call changes."""
_STRICT = ConfigDict(extra="forbid")
_Name = Annotated[str, Field(min_length=1, max_length=100)]
_Text = Annotated[str, Field(max_length=100_000)]
_Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
_Note = Annotated[str, Field(max_length=10_000)]


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class OfferedTool:
    """A tool of a worker's app, as its code declares it."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    description: _Text
    parameters: dict[str, Any]
    read_only: bool
    risk: Risk
    declares_risk: bool
    timeout_seconds: Annotated[float, Field(ge=MIN_TIMEOUT, le=MAX_TIMEOUT)]
    on_uncertain: OnUncertain | None
    is_async: bool
    """False: it runs in a thread, which nothing can stop."""
    takes_context: bool
    """Whether it, or its probe, is given a `ToolContext`: without one, nothing of the job is sent besides the arguments."""


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class OfferedServerTool:
    """A tool of an MCP server beside the worker, as that server describes it."""

    remote_name: _Line
    description: _Text
    parameters: dict[str, Any]
    hints: Annotated[dict[_Name, bool], Field(max_length=10)]
    implementation: _Note


class ServerState(StrEnum):
    STARTING = "starting"
    UP = "up"
    DOWN = "down"


_ServerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
_Tools = Annotated[list[OfferedServerTool], Field(max_length=MAX_TOOLS)]


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class OfferedServer:
    """An MCP server of a worker's app: how it is declared, and what it offers. It runs beside the worker, and nowhere else."""

    name: _ServerName
    command: Annotated[list[_Text], Field(max_length=1000)]
    url: _Text | None
    """With the command a part of what names a version of its tools."""
    timeout_seconds: Annotated[float, Field(ge=MIN_TIMEOUT, le=MAX_TIMEOUT)]
    risk: Risk
    declares_risk: bool
    on_uncertain: OnUncertain
    state: ServerState
    reason: _Note
    """Why it is not up."""
    tools: _Tools | None
    """None: it has not said yet."""


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class OfferedApp:
    name: Slug
    instructions: _Text | None
    tools: Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS)]
    triggers: Annotated[list[_Name], Field(max_length=MAX_TOOLS)]
    """The functions that gates ask whether they fire."""
    validators: Annotated[list[_Name], Field(max_length=MAX_TOOLS)]
    """The functions that gates ask about answers."""
    servers: Annotated[list[OfferedServer], Field(max_length=MAX_SERVERS)]


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Hello:
    """Who the worker is, and what it offers: its first message."""

    kind: Literal["hello"] = "hello"
    version: int
    release: _Line
    name: _Line
    host: _Line
    pid: int
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
    tick: float
    """What its clock shows."""
    apps: Annotated[list[OfferedApp], Field(min_length=1, max_length=MAX_APPS)]


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Welcome:
    """The plane has registered the worker, and may send it calls from now on."""

    kind: Literal["welcome"] = "welcome"
    worker_id: UUID
    beat_seconds: float
    """How often each side sends a `Beat`."""
    silence_seconds: float
    """A side that hears nothing for so long gives the link up."""


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class WorkerRefusal:
    """The plane does not take this worker, or not any more: connecting again is of no use before something changes."""

    kind: Literal["refusal"] = "refusal"
    code: _Name
    message: _Text
    hint: _Text


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Beat:
    """Of the worker: it lives, and what its clock shows. Of the plane: it lives."""

    kind: Literal["beat"] = "beat"
    tick: float = 0.0


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class ServerChange:
    """Of the worker: an MCP server of an app is in another state, or offers other tools."""

    kind: Literal["server"] = "server"
    app: Slug
    name: _ServerName
    state: ServerState
    reason: _Note
    tools: _Tools | None = None
    """All that it offers now. None: what it offered before."""


class InvokeTarget(StrEnum):
    """Which function of an app is called."""

    TOOL = "tool"
    PROBE = "probe"
    TRIGGER = "trigger"
    VALIDATOR = "validator"


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class JobContext:
    """What a tool sees of its job, besides its arguments."""

    org_id: UUID
    session_id: UUID
    job_id: UUID
    agent_id: UUID
    invocation_id: UUID
    step: int
    attempt: int
    state: dict[str, str]
    """The agent's own state: JSON by key."""
    config: dict[str, Any]
    session_context: dict[str, Any]


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class ServerCall:
    """What a call of a tool of an MCP server has besides its arguments."""

    key: UUID
    """The same whenever this call is sent."""
    digest: str
    """Of the version that was judged: no other one is called."""
    read_only: bool
    """A steward confirmed that it changes nothing."""


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Invoke:
    """Call a function. The id stands for this one sending: an answer to any other is dropped."""

    kind: Literal["invoke"] = "invoke"
    id: UUID
    target: InvokeTarget
    app: Slug
    name: _Name
    arguments: str
    """JSON: an object for a tool or a probe, a list for other functions."""
    timeout_seconds: float
    begin_before: float | None
    """What the worker's clock must not have reached when the call begins. None: it may begin at any time."""
    context: JobContext | None
    server_call: ServerCall | None = None


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Cancel:
    """Nobody waits for this call any more."""

    kind: Literal["cancel"] = "cancel"
    id: UUID


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Returned:
    """The function returned. Of a probe: `result` is null, or an object with `happened`, and then with what it would have returned."""

    kind: Literal["returned"] = "returned"
    id: UUID
    result: Annotated[str, Field(max_length=MAX_RESULT_BYTES + 1024)]
    """JSON."""
    state: Annotated[dict[str, str | None], Field(max_length=MAX_STATE_CHANGES)] | None = None
    """What the tool changed of the agent's state: JSON by key, null for what it deleted."""
    end_reason: _Note | None = None
    """Why the tool ends the session, if it does."""


class FailureKind(StrEnum):
    REFUSED = "refused"
    """The tool raised `ToolError`: nothing happened."""
    RAISED = "raised"
    """It raised anything else: for a tool with side effects, nobody knows."""
    TIMED_OUT = "timed_out"
    LATE = "late"
    """It was not begun: it arrived after the time before which it had to begin."""


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Failed:
    kind: Literal["failed"] = "failed"
    id: UUID
    failure: FailureKind
    message: _Note = ""
    hint: _Note = ""


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Leaving:
    """This side takes nothing new. The plane lets attempts stop at their next boundary, and then ends the link."""

    kind: Literal["leaving"] = "leaving"


@dataclass(config=_STRICT, frozen=True, kw_only=True)
class Goodbye:
    """Nothing runs any more: the link ends. A worker that does not stop itself connects again."""

    kind: Literal["goodbye"] = "goodbye"
    reason: _Text = ""


FromWorker = Hello | Beat | ServerChange | Returned | Failed | Leaving
FromPlane = Welcome | WorkerRefusal | Beat | Invoke | Cancel | Goodbye
Message = FromWorker | FromPlane
_readers: Final[dict[str, TypeAdapter[Any]]] = {
    "worker": TypeAdapter(Annotated[FromWorker, Field(discriminator="kind")]),
    "plane": TypeAdapter(Annotated[FromPlane, Field(discriminator="kind")]),
}


def encode_message(message: Message) -> bytes:
    return orjson.dumps(message, default=str)  # the driver's own UUIDs, which the encoder does not know


def _read(sender: str, content: bytes) -> Any:
    try:
        return _readers[sender].validate_python(orjson.loads(content))
    except (ValidationError, ValueError) as error:
        what = str(error).partition("\n")[0][:200]
        raise InvalidInput(
            f"The {sender} sent what is no message of this protocol: {what}",
            code="invalid_message",
            hint="Install the same release of cortex-plane on both sides.",
        ) from None


def read_worker_message(content: bytes) -> FromWorker:
    """Raises `InvalidInput` for anything that a worker may not send."""
    message: FromWorker = _read("worker", content)
    return message


def read_plane_message(content: bytes) -> FromPlane:
    message: FromPlane = _read("plane", content)
    return message


class LinkClosed(Exception):
    """The link is over, whoever ended it."""


class WorkerLink(Protocol):
    """Carries messages both ways, whole and in order, until it is closed."""

    async def send(self, content: bytes) -> None:
        """Raises ``LinkClosed``."""

    async def receive(self) -> bytes:
        """The next message. Raises ``LinkClosed``, also for what breaks the rules of the transport."""

    async def close(self) -> None: ...
