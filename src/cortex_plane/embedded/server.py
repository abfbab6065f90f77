"""A running server as its clients see it, and the settings on its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cortex_plane.kernel.errors import SetupError

SUPERUSER = "postgres"
LOOPBACK = "127.0.0.1"
# Every server has a socket directory of its own, so the port is only a part of the socket's name.
SOCKET_PORT = 5432


@dataclass(frozen=True)
class Server:
    """``host`` is the socket directory, or 127.0.0.1. ``password`` is set for TCP only."""

    host: str
    port: int
    version: int
    data_directory: Path
    superuser: str = SUPERUSER
    password: str | None = field(default=None, repr=False)

    def url(self, database: str = "postgres", user: str | None = None) -> str:
        """A URL for asyncpg and libpq.

        Over TCP it carries ``password`` for every user: give a new login role that password to let it in.
        On the socket no password is asked.
        """
        login = quote(self.superuser if user is None else user, safe="")
        name = quote(database, safe="")
        # sslmode is explicit, because PGSSLMODE in the caller's environment would ask for what is not there.
        if self.password is None:
            host = quote(self.host, safe="")
            return f"postgresql://{login}@/{name}?host={host}&port={self.port}&sslmode=disable"
        secret = quote(self.password, safe="")
        return f"postgresql://{login}:{secret}@{self.host}:{self.port}/{name}?sslmode=disable"


# In the command line of every server that we start: tells ours from a stranger's.
CLUSTER_NAME = "cortex-plane"

_DEFAULTS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}
# Nobody replicates from an embedded server; either setting without the other may not start.
_WITHOUT_REPLICATION = {"wal_level": "minimal", "max_wal_senders": "0"}
_DECIDED_HERE = {
    "cluster_name": CLUSTER_NAME,
    "log_destination": "stderr",
    "logging_collector": "off",
    "unix_socket_permissions": "0700",
    "ssl": "off",
}
_ADDRESS = ("listen_addresses", "port", "unix_socket_directories")
RESERVED = frozenset(_DECIDED_HERE) | frozenset(_ADDRESS) | {"data_directory", "hba_file", "external_pid_file"}


def check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name.lower() in RESERVED:
            raise SetupError(
                f"The setting {name} cannot be changed: the embedded server decides it.",
                code="embedded_setting",
                hint=f"Remove {name} from the settings of the embedded PostgreSQL.",
            )


def command_line(settings: Mapping[str, str], *, sockets: Path | None, port: int) -> list[str]:
    """``-c name=value`` for everything: defaults, then the caller's, then what may not be changed."""
    options = dict(_DEFAULTS)
    if not any(name in settings for name in _WITHOUT_REPLICATION):
        options |= _WITHOUT_REPLICATION
    options |= {**settings, **_DECIDED_HERE, "port": str(port)}
    if sockets is None:
        options |= {"listen_addresses": LOOPBACK, "unix_socket_directories": ""}
    else:
        # PostgreSQL reads a list: in quotes, a path with spaces stays one entry.
        path = str(sockets).replace('"', '""')
        options |= {"listen_addresses": "", "unix_socket_directories": f'"{path}"'}
    return [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
