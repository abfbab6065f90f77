"""A running server as its clients see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

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
