"""The least HTTP client that keeps its connection: what is measured is the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Wire:
    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        content = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: plane\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise RuntimeError(f"{head!r} {answer}")
        self._free.append((reader, writer))
        return answer

    async def close(self) -> None:
        for _, writer in self._free:
            writer.close()
            await writer.wait_closed()
