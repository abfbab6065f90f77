"""Frames of WebSocket (RFC 6455), for the link between a plane and its remote workers: whole binary messages, pings, and the end.

Nothing is negotiated: no extensions and no subprotocols. A client masks what it sends, a server does not; the other side of each
requires that.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN, _MASKED = 0x80, 0x80
_SHORT, _TWO_BYTES, _EIGHT_BYTES = 125, 126, 127
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class BrokenFrame(Exception):
    """The other side sent what is no frame, or one that is larger than it may be."""


def new_handshake_key() -> str:
    """What a client sends as `Sec-WebSocket-Key`."""
    return base64.b64encode(os.urandom(16)).decode()


def accept_key(key: str) -> str:
    """What a server answers to it."""
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def encode_frame(payload: bytes, opcode: int = BINARY, *, masked: bool) -> bytes:
    size, mask_bit = len(payload), _MASKED if masked else 0
    head = bytearray([_FIN | opcode])
    if size <= _SHORT:
        head.append(mask_bit | size)
    elif size < 1 << 16:
        head.append(mask_bit | _TWO_BYTES)
        head += size.to_bytes(2, "big")
    else:
        head.append(mask_bit | _EIGHT_BYTES)
        head += size.to_bytes(8, "big")
    if not masked:
        return bytes(head) + payload
    mask = os.urandom(4)
    return bytes(head) + mask + apply_mask(payload, mask)


def apply_mask(payload: bytes, mask: bytes) -> bytes:
    """Masks, and unmasks."""
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")


class FrameReader:
    """Puts frames together from what arrives."""

    def __init__(self, *, masked: bool, max_bytes: int) -> None:
        """``masked``: whether the other side must mask. ``max_bytes``: of a whole message."""
        self._masked, self._max_bytes = masked, max_bytes
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        """Of a message that is not complete."""
        self._size = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages and control frames that are complete with it. Raises ``BrokenFrame``."""
        self._buffer += data
        while (frame := self._take_frame()) is not None:
            fin, opcode, payload = frame
            if opcode >= CLOSE:
                yield opcode, payload
                continue
            if (opcode == CONTINUATION) != bool(self._parts):
                raise BrokenFrame("a message began inside another one, or went on without a beginning")
            self._parts.append(payload)
            self._size += len(payload)
            if self._size > self._max_bytes:
                raise BrokenFrame(f"a message is larger than {self._max_bytes} bytes")
            if fin:
                message, self._parts, self._size = b"".join(self._parts), [], 0
                yield BINARY, message

    def _take_frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        opcode, size, start = first & 0x0F, second & 0x7F, 2
        if first & 0x70 or opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise BrokenFrame("a frame has bits or a kind that nobody negotiated")
        if bool(second & _MASKED) is not self._masked:
            raise BrokenFrame("a frame is masked and must not be, or is not and must be")
        if opcode >= CLOSE and (size > _SHORT or not first & _FIN):
            raise BrokenFrame("a control frame is too large, or in parts")
        if size > _SHORT:
            start += 2 if size == _TWO_BYTES else 8
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        if size > self._max_bytes:
            raise BrokenFrame(f"a message is larger than {self._max_bytes} bytes")
        end = start + 4 * self._masked + size
        if len(buffer) < end:
            return None
        payload = bytes(buffer[end - size : end])
        if self._masked:
            payload = apply_mask(payload, bytes(buffer[start : start + 4]))
        del buffer[:end]
        return bool(first & _FIN), opcode, payload
