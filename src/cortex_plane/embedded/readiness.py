"""Whether a server accepts connections."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from cortex_plane.embedded.leftovers import PID_FILE
from cortex_plane.embedded.server import LOOPBACK, SUPERUSER

_PROTOCOL = 3 << 16
_SECONDS = 2.0
_STATUS_LINE = 7
_NOT_YET = b"C57P03\0"


def is_ready(data: Path, pid: int, socket_file: Path | None, port: int) -> bool:
    """The server says so in its pid file, and a client gets an answer.

    The file goes first: it names the process, so that a stranger on the same port is never taken for ours, and
    asking too early would fill the log with refusals.
    """
    return _announced(data, pid) and _answers(socket_file, port)


def _announced(data: Path, pid: int) -> bool:
    try:
        lines = (data / PID_FILE).read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return False
    return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


def _answers(socket_file: Path | None, port: int) -> bool:
    family = socket.AF_UNIX if socket_file else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(str(socket_file) if socket_file else (LOOPBACK, port))
            connection.sendall(_startup_packet())
            answer = connection.recv(1024)
        except OSError:
            return False
    # R asks for credentials or waives them. An error other than "not yet" also comes from a server at work.
    return answer[:1] == b"R" or (answer[:1] == b"E" and _NOT_YET not in answer)


def _startup_packet() -> bytes:
    body = struct.pack("!i", _PROTOCOL)
    for text in ("user", SUPERUSER, "database", "postgres"):
        body += text.encode() + b"\0"
    body += b"\0"
    return struct.pack("!i", len(body) + 4) + body
