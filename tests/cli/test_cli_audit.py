"""`cortex audit export`: a file that verifies, and never half of one."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import asyncpg
import pytest
import pytest_asyncio
from benchmarks.trails import fill
from structlog.testing import capture_logs

from cortex_plane.db.database import Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.main.main import main
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.exports import lines, verdict
from tests.fixtures.people import Person, World
from tests.fixtures.sockets import served


class Output(io.StringIO):
    """Standard output that takes bytes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = io.BytesIO()

    @property
    def buffer(self) -> BinaryIO:
        return self.bytes


@dataclass(frozen=True)
class Shell:
    address: str
    folder: Path

    async def start(self, person: Person, *words: str) -> asyncio.subprocess.Process:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cortex_plane", "audit", "export", *words,
            cwd=self.folder, env=clean | {"CORTEX_URL": self.address, "CORTEX_KEY": person.secret},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def call(self, person: Person, *words: str) -> tuple[int | None, bytes, str]:
        """The same as `run`, in this process."""
        out, err = Output(), io.StringIO()

        def call() -> int:
            try:
                main()
            except SystemExit as end:
                return int(end.code or 0)
            return 0

        with (
            capture_logs(),
            mock.patch.dict(os.environ, {"CORTEX_URL": self.address, "CORTEX_KEY": person.secret}),
            mock.patch.object(sys, "argv", ["cortex", "audit", "export", *words]),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = await asyncio.to_thread(call)
        return code, out.bytes.getvalue(), err.getvalue()

    async def run(self, person: Person, *words: str) -> tuple[int | None, bytes, str]:
        """Exit code, standard output, standard error."""
        process = await self.start(person, *words)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, out, err.decode()


@pytest_asyncio.fixture
async def shell(db: Database, tmp_path: Path) -> AsyncIterator[Shell]:
    async with served(db) as (address, _, _):
        yield Shell(address, tmp_path)


@pytest.mark.proves("D.80")
async def test_the_trail_is_written_to_a_file_or_to_standard_output(shell: Shell, world: World) -> None:
    session = (await world.say("ünïcödé")).session_id
    counted = await audit.verify(world.db, world.admin.actor)
    told = f"{counted.chains} chains, {counted.entries} entries"
    code, out, err = await shell.run(world.admin, "trail.ndjson")
    assert (code, out, err) == (0, b"", f"{told}\n")
    file = shell.folder / "trail.ndjson"
    assert verdict(file.read_bytes()).said == f"{told}: whole\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for words in ((), ("-",)):
        code, out, _ = await shell.call(world.admin, *words)
        assert (code, verdict(out).code) == (0, 0)
    code, out, err = await shell.run(world.admin, "-", "--session", str(session))
    assert (code, lines(out)[0]["session"], err) == (0, str(session), "1 chains, 4 entries\n")


async def test_a_file_that_is_there_stays(shell: Shell, world: World) -> None:
    old, link = shell.folder / "old.ndjson", shell.folder / "link.ndjson"
    old.write_text("evidence")
    link.symlink_to(shell.folder / "elsewhere")
    for name in ("old.ndjson", "link.ndjson"):
        code, _, err = await shell.call(world.admin, name)
        assert (code, "there already" in err) == (4, True)
    assert old.read_text() == "evidence"
    assert not (shell.folder / "elsewhere").exists()
    code, _, err = await shell.call(world.admin, "no/such/folder.ndjson")
    assert (code, "cannot be written" in err) == (2, True)


async def test_what_is_refused_leaves_no_file(shell: Shell, world: World) -> None:
    member = await world.person(Role.MEMBER)
    for person, words, expected in (
        (member, (), 5),
        (world.admin, ("--session", str(new_id())), 3),
        (world.admin, ("--session", "x"), 2),
    ):
        code, _, err = await shell.call(person, "trail.ndjson", *words)
        assert (code, bool(err)) == (expected, True)
        assert "Traceback" not in err
        assert not (shell.folder / "trail.ndjson").exists()


@pytest.mark.proves("D.81")
async def test_an_export_that_is_cut_off_leaves_no_file(shell: Shell, world: World, admin: asyncpg.Connection) -> None:
    await fill(admin, world.org_id, 40_000, padding=400)
    process = await shell.start(world.admin, "trail.ndjson")
    file = shell.folder / "trail.ndjson"
    async with asyncio.timeout(30):
        while not (file.exists() and file.stat().st_size):  # noqa: ASYNC110 -- a file tells nobody
            await asyncio.sleep(0.001)
    await admin.execute(
        """
        select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
          and backend_type = 'client backend'
        """
    )
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 6
    assert "cut off" in err.decode()
    assert not file.exists()
