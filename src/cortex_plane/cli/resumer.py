"""`cortex resume`: runs a command of this machine's own file for each session of an agent elsewhere about which people have decided.

The command resumes the agent, which asks the plane again: a resume itself decides nothing. Each decision leads to at least one run of the command
that ends well. What was done is in a file, so that a process that is killed loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from pydantic import BaseModel, ConfigDict, Field
from typer import Option

from cortex_plane.calls.model import CallDecision
from cortex_plane.cli.plane import run
from cortex_plane.client import Client
from cortex_plane.kernel.errors import CortexError, Forbidden, InvalidInput, NotFound, Unauthenticated
from cortex_plane.kernel.toml_files import TomlKind

log = logging.getLogger("cortex_plane.resume")

FIRST_LOOK = timedelta(days=1)
"""How far back the first look goes, where nothing was done before."""
OVERLAP = timedelta(minutes=5)
"""Each look begins so much earlier than the newest decision that was seen: one that was made at the same time may be written later."""
MOST_TRIES = 10
LONGEST_PAUSE = 300.0
GRACE_SECONDS = 10.0
"""How long a command has to end after SIGTERM."""
_PLACE = re.compile(r"\{(outside_id|session_id|call_id|agent)\}")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=100)]
    agent: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    parallel: Annotated[int, Field(ge=1, le=100)] = 4
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    every: Annotated[float, Field(ge=0.05, le=3600)] = 2.0
    state: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeConfig:
    command: tuple[str, ...]
    """A program and its arguments; never a shell."""
    folder: Path
    """Where it runs: that of the file."""
    state: Path
    agent: str | None = None
    parallel: int = 4
    timeout: float = 600.0
    every: float = 2.0

    def command_for(self, call: CallDecision) -> list[str]:
        """Raises `InvalidInput` where the id of a session, which others chose, would be read as an option."""
        values = {
            "outside_id": call.outside_id or "",
            "session_id": call.session_id,
            "call_id": call.id,
            "agent": call.agent,
        }
        words = []
        for word in self.command:
            text = _PLACE.sub(lambda place: str(values[place[1]]), word)
            if text.startswith("-") and not word.startswith("-"):
                raise InvalidInput(f"`{text}` would be read as an option.", hint="Put `--` or `--name=` before it.")
            words.append(text)
        return words


_KIND = TomlKind(noun="The file", code="invalid_resume_file", page="docs/guides/resume.md")


def read_resume_file(path: Path) -> ResumeConfig:
    return parse_resume_file(_KIND.read_text(path), path.name, path.resolve().parent)


def parse_resume_file(text: str, name: str, folder: Path) -> ResumeConfig:
    """Raises `InvalidInput` with the line of the first fault."""
    document = _KIND.parse(text, name, _File)
    if _PLACE.search(document.command[0]):
        raise _KIND.fault(text, name, ("command",), "the program itself is no part of a session")
    return ResumeConfig(
        command=tuple(document.command), folder=folder, state=folder / (document.state or f"{Path(name).stem}.state.json"),
        agent=document.agent, parallel=document.parallel, timeout=document.timeout, every=document.every,
    )  # fmt: skip


@dataclass(slots=True)
class ResumeState:
    """Which decisions led to a run that ended well, in a file that is replaced as a whole."""

    path: Path
    newest: datetime | None = None
    """The newest decision that was seen."""
    done: dict[str, datetime] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> ResumeState:
        try:
            content = json.loads(path.read_text())
            done = {name: datetime.fromisoformat(at) for name, at in content["done"].items()}
            return cls(path, datetime.fromisoformat(content["newest"]), done)
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"{path} cannot be read: {error}.",
                code="invalid_resume_state",
                hint="Remove it: the decisions of the last day are then done again, which repeats no call.",
            ) from None

    def since(self, waiting: Iterator[datetime]) -> datetime | None:
        """Where the next look begins. What waits to be done is not left behind."""
        return None if self.newest is None else min([self.newest, *waiting]) - OVERLAP

    def write(self, since: datetime | None) -> None:
        self.done = {name: at for name, at in self.done.items() if since is None or at >= since - OVERLAP}
        newest = None if since is None else since + OVERLAP
        if newest is None:
            return
        content = {"newest": newest.isoformat(), "done": {name: at.isoformat() for name, at in self.done.items()}}
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)


@dataclass(slots=True)
class _Thread:
    """The decisions about one session that no run has covered yet."""

    name: tuple[str, str, UUID | None]
    """What its agent knows it by. Sessions that follow each other under one name are resumed one at a time."""
    calls: dict[str, CallDecision] = field(default_factory=dict)
    tries: int = 0
    not_before: float = 0.0
    runs: bool = False


class Resumer:
    def __init__(self, plane: Client, config: ResumeConfig) -> None:
        self._plane, self._config = plane, config
        self._state = ResumeState.read(config.state)
        self._threads: dict[UUID, _Thread] = {}
        """By the id of the session: members and services may use the same outside id for theirs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._children: set[asyncio.subprocess.Process] = set()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Until `stop`. A plane that does not answer is asked again; a key that it refuses ends this."""
        try:
            while not self._stop.is_set():
                try:
                    await self._look()
                except (Unauthenticated, Forbidden, NotFound):
                    raise
                except CortexError as error:
                    log.warning("the plane is asked again: %s", error)
                self._start()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._config.every)
        finally:
            await self._end()

    async def _look(self) -> None:
        since = self._state.since(self._waiting()) or datetime.now(UTC) - FIRST_LOOK
        newest = self._state.newest or since + OVERLAP
        async for call in self._plane.calls.list_decided(agent=self._config.agent, since=since):
            newest = max(newest, call.decided_at)
            name = f"{call.approval_id}:{call.id}"
            # A session without an outside id lives and dies with the process that opened it.
            if name in self._state.done or call.outside_id is None:
                continue
            thread = self._threads.setdefault(
                call.session_id, _Thread((call.agent, call.outside_id, call.on_behalf_of))
            )
            thread.calls.setdefault(name, call)
        self._state.newest = newest
        self._state.write(self._state.since(self._waiting()))

    def _waiting(self) -> Iterator[datetime]:
        return (call.decided_at for thread in self._threads.values() for call in thread.calls.values())

    def _start(self) -> None:
        """Sessions whose turn it is, the oldest decision first. One of a session at a time."""
        now = asyncio.get_running_loop().time()
        ready = [
            thread for thread in self._threads.values() if thread.calls and not thread.runs and thread.not_before <= now
        ]
        queue = deque(sorted(ready, key=lambda thread: min(call.decided_at for call in thread.calls.values())))
        running = {thread.name for thread in self._threads.values() if thread.runs}
        while queue and len(self._tasks) < self._config.parallel:
            thread = queue.popleft()
            if thread.name in running:
                continue
            running.add(thread.name)
            thread.runs = True
            task = asyncio.create_task(self._resume(thread))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _resume(self, thread: _Thread) -> None:
        """One run covers what was decided before it began."""
        calls = dict(thread.calls)
        newest = max(calls.values(), key=lambda call: call.decided_at)
        try:
            is_done = await self._run_command(newest)
        finally:
            thread.runs = False
        thread.tries += 1
        if not is_done and thread.tries < MOST_TRIES:
            pause = min(LONGEST_PAUSE, self._config.every * 2.0**thread.tries)
            thread.not_before = asyncio.get_running_loop().time() + pause
            return
        if not is_done:
            log.error("%s of %s: given up after %d tries", newest.outside_id, newest.agent, thread.tries)
        thread.tries = 0
        for name, call in calls.items():
            del thread.calls[name]
            self._state.done[name] = call.decided_at
        if not thread.calls:
            self._threads.pop(newest.session_id, None)
        self._state.write(self._state.since(self._waiting()))
        self._start()

    async def _run_command(self, call: CallDecision) -> bool:
        variables = {
            "CORTEX_RESUME_OUTSIDE_ID": str(call.outside_id), "CORTEX_RESUME_SESSION_ID": str(call.session_id),
            "CORTEX_RESUME_CALL_ID": str(call.id), "CORTEX_RESUME_AGENT": call.agent, "CORTEX_RESUME_DECISION": call.decision,
            "CORTEX_RESUME_ON_BEHALF_OF": str(call.on_behalf_of or ""),
        }  # fmt: skip
        try:
            words = self._config.command_for(call)
            child = await asyncio.create_subprocess_exec(
                *words, cwd=self._config.folder, env={**os.environ, **variables}, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )  # fmt: skip
        except (OSError, ValueError, CortexError) as error:
            log.error("%s of %s cannot be resumed: %s", call.outside_id, call.agent, error)
            return False
        log.info("%s of %s: %s is %s; process %d", call.outside_id, call.agent, call.tool, call.decision, child.pid)
        self._children.add(child)
        try:
            code = await asyncio.wait_for(child.wait(), self._config.timeout)
        except TimeoutError:
            log.warning(
                "%s of %s: its command took longer than %g s", call.outside_id, call.agent, self._config.timeout
            )
            await _end_child(child)
            return False
        finally:
            self._children.discard(child)
        if code != 0:
            log.warning("%s of %s: its command ended with %d", call.outside_id, call.agent, code)
        return code == 0

    async def _end(self) -> None:
        """What did not end by itself is done again by the next process."""
        for task in self._tasks:
            task.cancel()
        children = list(self._children)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(_end_child(child) for child in children), return_exceptions=True)


async def _end_child(child: asyncio.subprocess.Process) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if child.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), GRACE_SECONDS)


async def _follow_decisions(plane: Client, config: ResumeConfig) -> None:
    resumer, loop = Resumer(plane, config), asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, resumer.stop)
    await resumer.run()


resume_app = typer.Typer()


@resume_app.command("resume")
def resume(file: Annotated[Path, Option(help="Which command resumes a session.")] = Path("cortex-resume.toml")) -> None:
    """Run a command for each session of an agent elsewhere about which people have decided, until it is stopped."""
    config = read_resume_file(file)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    run(lambda plane: _follow_decisions(plane, config))
