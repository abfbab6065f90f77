"""The server's settings, passed on its command line: no file in the cluster is edited."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cortex_plane.embedded.server import LOOPBACK
from cortex_plane.kernel.errors import SetupError

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
RESERVED = (
    frozenset(_DECIDED_HERE) | frozenset(_ADDRESS) | {"data_directory", "hba_file", "external_pid_file"}
)


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
    merged = dict(_DEFAULTS)
    if not any(name in settings for name in _WITHOUT_REPLICATION):
        merged |= _WITHOUT_REPLICATION
    merged |= settings
    merged |= _DECIDED_HERE
    merged["port"] = str(port)
    if sockets is None:
        merged |= {"listen_addresses": LOOPBACK, "unix_socket_directories": ""}
    else:
        # A list in PostgreSQL's eyes: quoted, a path with spaces stays one entry.
        quoted = str(sockets).replace('"', '""')
        merged |= {"listen_addresses": "", "unix_socket_directories": f'"{quoted}"'}
    return [word for name, value in merged.items() for word in ("-c", f"{name}={value}")]
