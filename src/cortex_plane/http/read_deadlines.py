"""How long a request may take to arrive and an answer to be taken, and how large a head may be.

The server itself waits for ever: a head that never ends, a body that trickles or an answer that nobody takes would keep its
connection, and whatever is held for it, as long as somebody likes. A connection on which nothing arrives at all ends as an idle
one does.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from enum import Enum
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cortex_plane.http.app import SAFE_HEADERS
from cortex_plane.http.packets import PacketTransport
from cortex_plane.http.problems import MEDIA_TYPE, TITLES


class _Part(Enum):
    """What of a request is arriving."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class DeadlineProtocol(HttpToolsProtocol):
    head_seconds = 10.0
    """For the whole head, from its first byte."""
    body_seconds = 20.0
    """For the body, and longer for a larger one."""
    body_bytes_per_second = 16 * 1024
    """What prolongs it: who sends at least this fast is never cut off."""
    max_head_bytes = 64 * 1024
    """After the first piece of it that arrived. The same holds for trailers, which follow a body."""
    answer_seconds = 60.0
    """How long a reader may take next to nothing of its answer."""
    answer_bytes = 16 * 1024
    """What it must take in that time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._part = _Part.NOTHING
        self._timer: TimerHandle | None = None
        self._until = 0.0
        self._head_bytes = 0
        """That arrived since the last piece of a body."""
        self._reader_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(PacketTransport(transport, self.loop))  # type: ignore[arg-type]
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(_Part.NOTHING)
        self._cancel_timer()
        self._cancel_reader_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._cancel_reader_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._part is _Part.NOTHING:
            self._expect(_Part.HEAD, self.head_seconds)
        self._head_bytes += len(data)
        super().data_received(data)
        if self._part is not _Part.NOTHING and self._head_bytes > self.max_head_bytes:
            what = "head" if self._part is _Part.HEAD else "trailer"
            self._refuse(
                431,
                code="head_too_large",
                detail=f"The {what} of the request is larger than {self.max_head_bytes} bytes.",
                hint="Send shorter headers and a shorter address.",
            )

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._expect(_Part.HEAD, self.head_seconds)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._expect(_Part.BODY, self.body_seconds)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._until += len(body) / self.body_bytes_per_second
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expect(_Part.NOTHING)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """From now on the connection is somebody else's."""
        self._expect(_Part.NOTHING)
        self._cancel_timer()
        self._cancel_reader_timer()
        super().handle_websocket_upgrade()

    def _expect(self, part: _Part, seconds: float = 0.0) -> None:
        """A timer that fires earlier is kept, because it checks the deadline again. So most requests set none."""
        self._part = part
        if part is not _Part.NOTHING:
            self._until = self.loop.time() + seconds
            if self._timer is None or self._timer.when() > self._until:
                self._cancel_timer()
                self._timer = self.loop.call_at(self._until, self._look)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The deadline may have moved meanwhile; and where the plane itself does not read on, nobody is late."""
        self._timer = None
        if self._part is _Part.NOTHING:
            return
        if self.flow.read_paused:
            self._until = self.loop.time() + self.body_seconds
        if self.loop.time() < self._until:
            self._timer = self.loop.call_at(self._until, self._look)
            return
        self._refuse(
            408,
            code="read_timeout",
            detail=f"The {self._part.value} of the request did not arrive in time.",
            hint="Send the request again, without pauses.",
        )

    def _watch_reader(self) -> None:
        unread: int = self.transport.get_write_buffer_size()
        self._cancel_reader_timer()
        self._reader_timer = self.loop.call_later(self.answer_seconds, self._look_at_reader, unread)

    def _look_at_reader(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() > unread - self.answer_bytes:
            self.transport.abort()  # to close it would wait until all of it is taken
        else:
            self._watch_reader()

    def _cancel_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _refuse(self, status: int, *, code: str, detail: str, hint: str) -> None:
        part = self._part
        self._expect(_Part.NOTHING)
        if self.transport.is_closing():
            return
        if self._may_answer(part):
            problem = {
                "type": "about:blank", "title": TITLES[status], "status": status, "code": code, "detail": detail,
                "hint": hint,
            }  # fmt: skip
            self.transport.write(_answer(status, orjson.dumps(problem)))
        self.transport.close()

    def _may_answer(self, part: _Part) -> bool:
        """Not into the middle of an answer: that of this request, or of the one before it."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            return True
        begun = cycle.response_started if part is _Part.BODY else not cycle.response_complete
        return not begun and not self.pipeline


def _answer(status: int, content: bytes) -> bytes:
    headers = (
        *SAFE_HEADERS,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    )
    lines = [f"HTTP/1.1 {status} {TITLES[status]}".encode(), *(name + b": " + value for name, value in headers)]
    return b"\r\n".join([*lines, b"", content])
