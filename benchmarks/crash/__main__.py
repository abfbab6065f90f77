"""The table of crashes on a PostgreSQL of its own."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.crash.table import all_rows, print_table
from cortex_plane.embedded import EmbeddedPostgres


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cortex-crash-") as folder:
        home = Path(folder)
        home.chmod(0o711)
        with EmbeddedPostgres(home) as server:
            print_table(asyncio.run(all_rows(server.url())))


if __name__ == "__main__":
    main()
