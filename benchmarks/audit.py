"""The audit trail at 10,000 and at a million entries: verified in the database, exported, and verified from the file.

What is asked of it is flat memory, so each part runs in a process of its own, whose peak is then its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from benchmarks.peers.databases import fresh_database
from benchmarks.plane import KEY, plane
from benchmarks.trails import fill
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.verbs import frame, keys

SIZES = (10_000, 1_000_000)
AIM_MIB = 16.0
"""How much larger the peak may be with a hundred times the entries."""
REPOSITORY = Path(__file__).parent.parent
SCRIPT = REPOSITORY / "examples" / "verify_export.py"


_WATCHED = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    sys.stderr.write(peak.split()[1])
"""
"""Runs a script and says its peak in KiB. (What the system tells of a child would include its parent's.)"""


async def run(admin_url: str, *, sizes: Sequence[int] = SIZES) -> bool:
    print(f"\n{'audit trail':36}{'entries/s':>12}{'peak MiB':>10}{'growth':>10}{'aim':>8}")
    met = True
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cortex-bench-audit-") as folder:
        file = Path(folder) / "audit.ndjson"
        async with fresh_database(admin_url, "audit") as url, plane(url) as made:
            key = await keys.issue_key_for_owner(made.db) or ""
            parts = {
                "verified in the database": (__file__, "verify", made.app_url, str(made.actor.org_id)),
                "exported": (__file__, "export", made.app_url, key, str(file)),
                "verified offline": (str(SCRIPT), str(file)),
            }
            admin = await asyncpg.connect(url)
            filled = 0
            for size in sizes:
                await fill(admin, made.actor.org_id, size - filled)
                await admin.execute("vacuum analyze audit_entry", timeout=600)
                filled = size
                for name, command in parts.items():
                    seconds, peak = await asyncio.to_thread(_watched, command)
                    growth = peak - first.setdefault(name, peak)
                    missed = growth > AIM_MIB
                    met = met and not missed
                    print(f"{f'  {size:,} {name}':36}{size / seconds:>12,.0f}{peak:>10.1f}", end="")
                    told = f"{growth:>10.1f}{f'≤ {AIM_MIB:g}':>8}" if size != sizes[0] else ""
                    print(told + ("  MISSED" if missed else ""))
            await admin.close()
    return met


def _watched(command: Sequence[str]) -> tuple[float, float]:
    """Seconds, start included, and the peak in MiB of a process that ends well."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, *command],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"{command[:2]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return seconds, int(done.stderr) / 1024


async def _verify(url: str, org: str) -> None:
    db = await Database.open(url, max_size=2)
    result = await audit.verify_org(db, UUID(org))
    await db.close()
    if result.faults:
        raise RuntimeError(f"the trail is broken: {result.faults}")


async def _export(url: str, secret: str, file: str) -> None:
    db = await Database.open(url, max_size=2, vault=Vault(KEY))
    with Path(file).open("wb") as output:  # noqa: ASYNC230 -- nothing else runs in this process
        async for chunk in await audit.export_trail(db, await frame.authenticate_key(db, secret), None):
            output.write(chunk)
    await db.close()


if __name__ == "__main__":
    asyncio.run(_verify(*sys.argv[2:]) if sys.argv[1] == "verify" else _export(*sys.argv[2:]))
