"""Answers without an end in sight: sent as they are made, and given up as soon as nobody takes them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cortex_plane.http.in_flight import leave, others_wait

log = structlog.get_logger()

STALL_SECONDS = 60.0
"""How long one chunk may wait for a reader that takes nothing."""
PAUSE = 4.0
"""Beside other orgs: so many times as long as a chunk took, before the next one."""
LONGEST_SECONDS = 3600.0
"""A snapshot keeps the database from cleaning up, so none is held longer than this for a slow reader."""


class Download(StreamingResponse):
    """Closes what it sends whatever happens, before it returns.

    The framework's own would leave that to the garbage collector when a client goes away, and would cancel the cleanup
    too. If the source fails, the answer ends without its end: the server closes the connection, and the client knows.
    """

    def __init__(self, content: AsyncGenerator[bytes, None], media_type: str, filename: str) -> None:
        super().__init__(
            content,
            media_type=media_type,
            headers={"Content-Disposition": f'attachment; filename="{filename}"'},
        )
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        others = others_wait(scope)
        leave(scope)  # how long its reader takes is no work of the plane's
        sending = asyncio.create_task(self._send_all(send, others))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._content.aclose()

    async def _send_all(self, send: Send, others_wait: Callable[[], bool]) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await send(start)
                began = time.monotonic()
                async for chunk in self._content:
                    pause = PAUSE * (time.monotonic() - began) if others_wait() else 0.0
                    async with asyncio.timeout(STALL_SECONDS):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await asyncio.sleep(pause)
                    began = time.monotonic()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.warning("download given up", reason="its reader is too slow")
        except OSError:
            log.info("download given up", reason="its reader is gone")
        except Exception as error:
            log.error("download cut off", exc_info=error)


async def _until_gone(receive: Receive) -> None:
    with contextlib.suppress(Exception):
        while (await receive())["type"] != "http.disconnect":
            pass
