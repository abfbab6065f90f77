"""Claude Code itself: the program of the wheel `claude-agent-sdk`, which `make test` fetches, in a network of its own that has nothing but a loopback.

The model and the plane serve outside of it. Relays over Unix sockets, which cross networks, stand for both inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MISSING = "Claude Code is not here, or no network of its own can be made: `make claude` fetches it, CORTEX_CLAUDE names another one"
MODEL_KEY = "sk-ant-test-0001"
BUNDLED = Path(__file__).parents[2] / ".venv/claude/claude_agent_sdk/_bundled/claude"

_INSIDE = """
import asyncio, os, struct, sys, fcntl, socket
with socket.socket() as s:  # the loopback goes up
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", b"lo", 0x1 | 0x40, b""))

async def pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()

async def relay(path, reader, writer):
    inner, outer = await asyncio.open_unix_connection(path)
    await asyncio.gather(pipe(reader, outer), pipe(inner, writer))

async def main():
    for pair in sys.argv[1].split(","):
        port, path = pair.split("=", 1)
        await asyncio.start_server(lambda r, w, path=path: relay(path, r, w), "127.0.0.1", int(port))
    process = await asyncio.create_subprocess_exec(*sys.argv[2:])
    sys.exit(await process.wait())

asyncio.run(main())
"""


def program() -> Path | None:
    """Where Claude Code is and a network of its own can be made."""
    path = Path(os.environ.get("CORTEX_CLAUDE", BUNDLED))
    return path if path.exists() and shutil.which("unshare") else None


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def _reachable(path: Path, port: int) -> AsyncIterator[None]:
    """A port of this machine, at a path."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:  # nobody listens there
            writer.close()
            return
        await asyncio.gather(_pipe(reader, outer), _pipe(inner, writer))

    server = await asyncio.start_unix_server(relay, path)
    try:
        yield
    finally:
        server.close()


@dataclass(frozen=True)
class ClaudeCode:
    home: Path
    model_port: int
    plane_port: int
    key: str

    async def run(self, *words: str) -> dict[str, Any]:
        """One run without a terminal, and its result."""
        async with (
            self._started(
                "-p",
                *words,
                "--output-format",
                "json",
                stdin=asyncio.subprocess.DEVNULL,
                output=asyncio.subprocess.PIPE,
            ) as process,
            asyncio.timeout(120),
        ):
            out, err = await process.communicate()
        assert process.returncode == 0, (out, err)
        result: dict[str, Any] = json.loads(out)
        return result

    @contextlib.asynccontextmanager
    async def terminal(self, prompt: str) -> AsyncIterator[None]:
        """A run in front of a person, who says this first."""
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [MODEL_KEY[-20:]], "rejected": []},
        }
        trust = {"projects": {str(self.home): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}}
        (self.home / ".claude.json").write_text(json.dumps(known | trust))
        screen, program_side = os.openpty()
        fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(screen, _read_away, screen)
            async with self._started(prompt, stdin=program_side, output=program_side) as process:
                yield
                assert process.returncode is None
        finally:
            loop.remove_reader(screen)
            os.close(screen)
            os.close(program_side)

    @contextlib.asynccontextmanager
    async def _started(self, *words: str, stdin: int, output: int) -> AsyncIterator[asyncio.subprocess.Process]:
        path = program()
        assert path is not None
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "CORTEX_KEY": self.key, "ANTHROPIC_API_KEY": MODEL_KEY,
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self.model_port}", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1", "TERM": "xterm-256color",
        }  # fmt: skip
        model, plane = self.home / "model.sock", self.home / "plane.sock"
        async with _reachable(model, self.model_port), _reachable(plane, self.plane_port):
            process = await asyncio.create_subprocess_exec(
                "unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", _INSIDE,
                f"{self.model_port}={model},{self.plane_port}={plane}", str(path), *words,
                cwd=self.home, env=environment, start_new_session=True, stdin=stdin, stdout=output, stderr=output,
            )  # fmt: skip
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _read_away(screen: int) -> None:
    """What nobody reads stops who writes it."""
    with contextlib.suppress(OSError):
        os.read(screen, 65536)
