"""Exports to test with: the script that verifies them, and ways to tamper with one and seal it again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import ERASED, Fact
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import Actor
from tests.people import World

SCRIPT = Path(__file__).parent.parent / "examples" / "verify_export.py"


async def exported(db: Database, actor: Actor, session_id: Any = None) -> bytes:
    """A whole export, as one piece."""
    chunks = await audit.export_trail(db, actor, session_id)
    return b"".join([chunk async for chunk in chunks])


async def erase(world: World, chain: UUID, entries: dict[int, str]) -> None:
    """Append the entry under which these bodies of a chain may be blanked; ``entries``: their numbers and actions."""
    named = [{"seq": seq, "action": action} for seq, action in entries.items()]
    fact = Fact.of(world.admin.actor, ERASED, entries=named, reason="test")
    async with world.db.transaction(world.org_id) as tx:
        if chain == world.org_id:
            await proof_store.append_to_org(tx, fact)
        else:
            await proof_store.append_to_session(tx, chain, [fact])


def lines(export: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export.splitlines()]


def spelled(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def sealed(found: list[dict[str, Any]]) -> bytes:
    """The lines under a trailer that fits them, as a forger would leave them."""
    before = b"".join(spelled(line) for line in found if line["type"] != "trailer")
    kinds = [line["type"] for line in found]
    trailer = {"type": "trailer", "chains": kinds.count("head"), "entries": kinds.count("entry")}
    return before + spelled(trailer | {"sha256": hashlib.sha256(before).hexdigest()})


@dataclass(frozen=True)
class Verdict:
    code: int
    said: str
    complained: str


def verdict(export: bytes, *more: str) -> Verdict:
    """What the script says in a process of its own, in which nothing of ours can be imported."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "-", *more], input=export, capture_output=True, timeout=60
    )
    return Verdict(done.returncode, done.stdout.decode(), done.stderr.decode())
