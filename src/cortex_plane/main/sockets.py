"""The port of the API: bound by one process, or shared by several."""

from __future__ import annotations

import errno
import socket

from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import Settings


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """``shared``: with every other socket that is bound so. The system spreads connections over those of them that listen."""
    # The protocol is named, because the event loop turns off Nagle's delay only where it is.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def listen(settings: Settings, *, or_any_port: bool = False, shared: bool = False) -> socket.socket:
    """Bind before anything else starts, so that a port in use is reported at once."""
    for port in (settings.port, 0) if or_any_port else (settings.port,):
        try:
            listener = bind(settings.host, port, shared=shared)
            listener.listen(1024)
        except OSError as error:
            if or_any_port and port and error.errno == errno.EADDRINUSE:
                continue
            raise SetupError(
                f"Cannot listen on {settings.host}:{port}: {error.strerror}.",
                code="cannot_listen",
                hint="Set CORTEX_PORT (0 chooses a free one) or CORTEX_HOST.",
            ) from error
        return listener
    raise AssertionError("the last try returns or raises")


def listen_at(place: str) -> socket.socket:
    """``HOST:PORT``; port 0 chooses a free one."""
    host, _, port = place.rpartition(":")
    try:
        listener = bind(host.strip("[]"), int(port))
        listener.listen(1024)
    except (OSError, ValueError, OverflowError) as error:
        raise SetupError(
            f"Cannot listen on {place}: {error}.", code="cannot_listen", hint="Give HOST:PORT, such as 127.0.0.1:8430."
        ) from error
    return listener


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
