"""The sum of a checkpoint, computed by others: the vectors of the docs, and a script for Node."""

from __future__ import annotations

import asyncio
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import strategies as st

from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from tests.fixtures.checkpoints import VALUES
from tests.fixtures.people import World
from tests.fixtures.properties import holds_for
from tests.fixtures.stages import held_job

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "docs" / "reference" / "checkpoint-vectors.json"
SCRIPT = ROOT / "examples" / "verify_checkpoint.mjs"
NODE = shutil.which("node")
with_node = pytest.mark.skipif(NODE is None, reason=f"there is no `node` on this machine to run {SCRIPT.name} with")


async def node(*arguments: str, stdin: bytes = b"") -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        NODE or "node", str(SCRIPT), *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate(stdin)
    return process.returncode, out.decode()


@pytest.mark.proves("S1.206")
@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda vector: vector["name"])
def test_the_vectors_of_the_docs_are_what_the_plane_computes(vector: dict[str, Any]) -> None:
    try:
        form = canonical(json.loads(vector["json"]))
    except InvalidInput:
        form = canonical(orjson.loads(vector["json"]))  # digits beyond 64 bits are read as a double
    assert form.decode() == vector["canonical"]
    assert zlib.crc32(form) == vector["crc32"]
    assert canonical(orjson.loads(form)) == form, "its own canonical form"


@with_node
async def test_node_computes_the_vectors() -> None:
    code, out = await node("--vectors", str(VECTORS))
    assert (code, "WRONG" in out) == (0, False), out


@with_node
@holds_for(st.lists(VALUES, min_size=20, max_size=60), few=10, many=200)
def test_node_computes_any_value(values: list[Any]) -> None:
    vectors = []
    for number, value in enumerate(values):
        form = canonical(value)
        vectors.append(
            {"name": str(number), "json": form.decode(), "canonical": form.decode(), "crc32": zlib.crc32(form)}
        )
    code, out = asyncio.run(node("--vectors", "/dev/stdin", stdin=json.dumps(vectors).encode()))
    assert code == 0, out


@with_node
@pytest.mark.proves("S1.206")
async def test_node_recomputes_the_sum_of_a_real_job(http: httpx.AsyncClient, world: World) -> None:
    held = await held_job(world)
    blob = await http.get(f"/v1/jobs/{held.job}/checkpoint", headers=world.admin.headers)
    assert (await node("-", stdin=blob.content)) == (0, f"crc32 {blob.json()['crc32']} fits\n")
    stored = await http.get(f"/v1/jobs/{held.job}/checkpoint", headers=world.admin.headers)
    async with world.db.transaction(world.org_id) as tx:
        text = await tx.value("select whole_checkpoint(checkpoint, memory)::text from job where id = $1", held.job)
    assert (await node("-", stdin=text.encode()))[0] == 0, "as PostgreSQL writes it, too"
    damaged = stored.content.replace(b'"step_index":0', b'"step_index":1', 1)
    code, out = await node("-", stdin=damaged)
    assert (code, "is computed" in out) == (1, True)
    for text in (b"", b"[1,]", b'{"a":1', b'{"a":1}', b"{} {}"):
        code, out = await node("-", stdin=text)
        assert (code, out.startswith("This is not a checkpoint: ")) == (2, True), (text, out)
