"""An embedded PostgreSQL: a private server that lives exactly as long as the process that started it.

    with EmbeddedPostgres(Path(".cortex")) as server:
        connection = await asyncpg.connect(server.url())

Everything it keeps is in the plane's own directory:

    .cortex/postgres            the cluster (mode 0700, owned by the server's user)
    .cortex/postgres.socket     its unix socket (mode 0700)
    .cortex/postgres.log        its log, and postgres.log.1, the one before
    .cortex/postgres.lock       held while a process owns the directory
    .cortex/postgres.password   the superuser's password, for TCP only (mode 0600)
    .cortex/postgres.location   only if the cluster had to be kept elsewhere: where it is
"""

from cortex_plane.embedded.launcher import EmbeddedPostgres
from cortex_plane.embedded.postmaster import Server

__all__ = ["EmbeddedPostgres", "Server"]
