"""The outside world: a process of its own that does irreversible things and counts them.

    python -m benchmarks.world --log FILE --port 0

prints its port as the first line. An act is appended to the log and fsynced before anybody hears of it, so that the
log tells what truly happened, whoever died meanwhile.

    POST /act         {"key", "idempotency_key", "delay_ms", "payload"}: act, wait, answer
    GET  /acts/{key}  {"count": n}
    GET  /log         every act, in order
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).parent.parent
_MOST_BYTES = 16 * 2**20


class Ledger:
    """What was done. An act with an idempotency key that was seen before is answered, not done again."""

    def __init__(self, log: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.acts: list[dict[str, Any]] = []
        self._answers: dict[str, dict[str, Any]] = {}
        self._file = log.open("ab+")
        self._file.seek(0)
        for line in self._file:
            self._remember(json.loads(line))

    def act(self, key: str, idempotency_key: str | None, payload: Any) -> dict[str, Any]:
        if idempotency_key is not None and idempotency_key in self._answers:
            return self._answers[idempotency_key] | {"replayed": True}
        act = {"key": key, "idempotency_key": idempotency_key, "at": time.time(), "payload": payload}
        self._file.write(json.dumps(act).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._remember(act)

    def close(self) -> None:
        self._file.close()

    def _remember(self, act: dict[str, Any]) -> dict[str, Any]:
        self.acts.append(act)
        self.counts[act["key"]] += 1
        answer = {"key": act["key"], "number": len(self.acts), "replayed": False}
        if act["idempotency_key"] is not None:
            self._answers[act["idempotency_key"]] = answer
        return answer


async def _respond(ledger: Ledger, method: str, path: str, body: bytes) -> tuple[int, object]:
    if method == "POST" and path == "/act":
        try:
            wish = json.loads(body)
            key, delay = str(wish["key"]), int(wish.get("delay_ms") or 0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return 400, {"error": f"cannot read the act: {error!r}"}
        answer = ledger.act(key, wish.get("idempotency_key"), wish.get("payload"))
        if not answer["replayed"]:
            await asyncio.sleep(delay / 1000)
        return 200, answer
    if method == "GET" and path.startswith("/acts/"):
        return 200, {"count": ledger.counts[unquote(path.removeprefix("/acts/"))]}
    if method == "GET" and path == "/log":
        return 200, ledger.acts
    return 404, {"error": f"no {method} {path} in this world"}


async def _converse(ledger: Ledger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, kept alive for as long as the client lives; its death is its own affair."""
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
            request, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            method, path, _ = request.split(" ", 2)
            size = int(headers.get("content-length", 0))
            if size > _MOST_BYTES:
                return
            body = await reader.readexactly(size)
            status, answer = await _respond(ledger, method, path, body)
            said = json.dumps(answer).encode()
            start = f"HTTP/1.1 {status} .\r\ncontent-type: application/json\r\ncontent-length: {len(said)}\r\n\r\n"
            writer.write(start.encode() + said)
            await writer.drain()
            if headers.get("connection", "").lower() == "close":
                return
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        pass  # the client died, or spoke no HTTP
    finally:
        writer.close()


async def _serve(log: Path, port: int, *, with_parent: bool) -> None:
    ledger = Ledger(log)
    server = await asyncio.start_server(lambda r, w: _converse(ledger, r, w), HOST, port)
    print(server.sockets[0].getsockname()[1], flush=True)
    try:
        if with_parent:
            await asyncio.to_thread(sys.stdin.buffer.read)  # ends when the parent does, however it died
        else:
            await server.serve_forever()
    finally:
        ledger.close()


@dataclass(frozen=True)
class World:
    """How to reach it. Safe to use from many tasks; every call has a connection of its own."""

    url: str

    async def act(
        self, key: str, *, idempotency_key: str | None = None, delay_ms: int = 0, payload: Any = None
    ) -> dict[str, Any]:
        wish = {"key": key, "idempotency_key": idempotency_key, "delay_ms": delay_ms, "payload": payload}
        answer: dict[str, Any] = await self._call("POST", "/act", wish)
        return answer

    async def count(self, key: str) -> int:
        answer = await self._call("GET", f"/acts/{quote(key, safe='')}")
        return int(answer["count"])

    async def log(self) -> list[dict[str, Any]]:
        acts: list[dict[str, Any]] = await self._call("GET", "/log")
        return acts

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        place = urlsplit(self.url)
        said = b"" if body is None else json.dumps(body).encode()
        start = f"{method} {path} HTTP/1.1\r\nhost: {place.netloc}\r\nconnection: close\r\ncontent-length: {len(said)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(start.encode() + said)
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the outside world refused {method} {path}: {head!r} {answer!r}")
        return json.loads(answer)


@contextlib.asynccontextmanager
async def outside_world(log: Path | None = None) -> AsyncIterator[World]:
    """The world as a process that ends with this block, or with this process."""
    with tempfile.TemporaryDirectory(prefix="cortex-world-") as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.world",
            "--log", str(log or Path(folder) / "acts.jsonl"), "--port", "0", "--with-parent",
            cwd=REPOSITORY, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield World(f"http://{HOST}:{int(await process.stdout.readline())}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="The outside world, for benchmarks and crash tests.")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(asked.log, asked.port, with_parent=asked.with_parent))


if __name__ == "__main__":
    main()
