"""A process of its own that owns an embedded server, for tests that kill it or run it as somebody else.

    python owner.py DIRECTORY [tcp]

It prints one line of JSON, then stops the server when its standard input ends.
"""

import asyncio
import json
import sys
from pathlib import Path

import asyncpg

from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.kernel.errors import SetupError


async def whoami(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("select current_user"))
    finally:
        await connection.close()


def main() -> None:
    phrases: list[str] = []
    launcher = EmbeddedPostgres(
        Path(sys.argv[1]), settings={"fsync": "off"}, tcp="tcp" in sys.argv, on_progress=phrases.append
    )
    try:
        server = launcher.start()
    except SetupError as error:
        report = {"code": error.code, "message": error.message, "hint": error.hint}
    else:
        pid = (server.data_directory / "postmaster.pid").read_text().split("\n")[0]
        report = {"url": server.url(), "postgres": pid, "user": asyncio.run(whoami(server.url()))}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    # No stop(): leaving is enough.


main()
