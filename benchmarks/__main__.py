"""One run, one PostgreSQL with fsync on, everything interleaved. Trust the ratios, not the microseconds."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks import (
    approvals,
    audit,
    checkpoints,
    claims,
    code_agents,
    conversations,
    credentials,
    gated_steps,
    gates,
    growth,
    guards,
    ingest,
    outbox,
    parked,
    policies,
    startup,
    steps,
    streaming,
    streams,
)
from benchmarks.crash.table import all_rows, print_table
from cortex_plane.bootstrap.databases import plain_login
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.storage.migrate import migrate


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cortex-bench-") as folder:
        home = Path(folder)
        home.chmod(0o711)
        with EmbeddedPostgres(home) as server:
            print(f"PostgreSQL {server.version}, fsync on\n")
            admin = server.url()
            asyncio.run(migrate(admin))
            met = [
                asyncio.run(part(admin))
                for part in (
                    steps.run,
                    code_agents.run,
                    checkpoints.run,
                    growth.run,
                    claims.run,
                    approvals.run,
                    credentials.run,
                    outbox.run,
                    audit.run,
                    streams.run,
                    streaming.run,
                    guards.run,
                    gated_steps.run,
                    conversations.run,
                    parked.run,
                )
            ]
            met.append(asyncio.run(ingest.run(plain_login(home, admin), admin)))
            print()
            print_table(asyncio.run(all_rows(server)))
    met.append(policies.run())
    met.append(gates.run())
    met.append(startup.run())
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
