"""One owner at a time, and no server without its owner, however the owner ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from cortex_plane.embedded import EmbeddedPostgres, places, postmaster
from cortex_plane.embedded.account import choose_account
from cortex_plane.embedded.binaries import find_binaries
from cortex_plane.embedded.postmaster import command_line
from cortex_plane.kernel.errors import SetupError

Launch = Callable[..., EmbeddedPostgres]
Fetch = Callable[[str, str], Any]
Owners = Callable[..., Any]
Until = Callable[..., None]
Gone = Callable[[int], bool]


@pytest.fixture
def directory(place: Path) -> Path:
    return place / ".cortex"


@pytest.mark.proves("D.18")
def test_a_killed_owner_takes_the_server_along(
    directory: Path, owner: Owners, launch: Launch, fetch: Fetch, gone: Gone
) -> None:
    app = owner(directory)
    url = app.report()["url"]
    fetch(url, "create table kept as select 7 as n")
    app.kill()
    # At once: the old server may still be shutting down.
    with launch() as server:
        assert gone(app.postgres)
        assert fetch(server.url(), "select n from kept") == 7


def test_the_server_goes_without_a_successor_too(directory: Path, owner: Owners, until: Until, gone: Gone) -> None:
    app = owner(directory)
    app.report()
    app.kill()
    until(lambda: gone(app.postgres), "the server's end")


def test_an_owner_that_leaves_stops_the_server(directory: Path, owner: Owners, gone: Gone) -> None:
    app = owner(directory)
    app.report()
    app.leave()
    assert app.process.returncode == 0
    assert gone(app.postgres)
    assert not (directory / "postgres" / "postmaster.pid").exists()


@pytest.mark.proves("D.18")
async def test_everything_killed(directory: Path, owner: Owners, launch: Launch, gone: Gone) -> None:
    app = owner(directory)
    busy = await asyncpg.connect(app.report()["url"])
    await busy.execute("create table kept as select 9 as n")
    backend = await busy.fetchval("select pg_backend_pid()")
    # A backend that never waits does not notice that its server is gone.
    loop = asyncio.ensure_future(busy.execute("do $$ begin raise notice 'round'; loop end loop; end $$"))
    began = asyncio.Event()
    busy.add_log_listener(lambda *_: began.set())
    await began.wait()
    os.kill(app.postgres, signal.SIGKILL)
    app.kill()
    assert not gone(backend)

    phrases: list[str] = []
    with launch(on_progress=phrases.append) as server:
        assert gone(backend)
        connection = await asyncpg.connect(server.url())
        assert await connection.fetchval("select n from kept") == 9
        await connection.close()
    assert f"waiting for the previous PostgreSQL (pid {backend}) to stop" in phrases
    with pytest.raises(asyncpg.PostgresError):
        await loop
    await busy.close()


@pytest.mark.proves("D.19")
def test_the_second_starter_is_told_who_was_first(directory: Path, owner: Owners, launch: Launch) -> None:
    app = owner(directory)
    app.report()
    with pytest.raises(SetupError, match=f"in use by process {app.pid}") as refusal:
        launch().start()
    assert refusal.value.code == "embedded_locked"
    assert f"kill {app.pid}" in refusal.value.hint


def test_the_same_process_cannot_start_it_twice(launch: Launch) -> None:
    with launch() as server:
        with pytest.raises(SetupError, match="already started by this process"):
            launch().start()
        assert server.data_directory.exists()


@pytest.mark.parametrize("kind", ["running", "zombie", "missing"])
def test_a_stale_pid_file_is_no_obstacle(directory: Path, launch: Launch, kind: str) -> None:
    launcher = launch()
    data = launcher.start().data_directory
    launcher.stop()
    account = choose_account(directory, data)
    uid = account.uid if account.dropped else None
    sleeper = subprocess.Popen(["sleep", "60" if kind == "running" else "0"], user=uid)
    try:
        if kind == "zombie":
            os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        if kind == "missing":
            sleeper.wait()
        (data / "postmaster.pid").write_text(f"{sleeper.pid}\n{data}\n0\n5432\n{directory}\n\n  1 2\nready   \n")
        (directory / "postgres.lock").write_text(f"{sleeper.pid}\n")
        lock = directory / "postgres.socket" / ".s.PGSQL.5432.lock"
        lock.write_text(f"{sleeper.pid}\n{data}\n0\n5432\n")
        launcher.start()
    finally:
        sleeper.kill()
        sleeper.wait()


def orphan(directory: Path, data: Path, *, ours: bool, until: Until) -> subprocess.Popen[bytes]:
    account = choose_account(directory, data)
    binaries = find_binaries(None, account, lambda _: None)
    sockets = places.socket_directory(directory, directory, account)
    assert sockets is not None
    options = command_line({"fsync": "off"}, sockets=sockets, port=5432)
    if not ours:
        options = [word.replace("cortex-plane", "mine") for word in options]
    command = [str(binaries.program("postgres")), "-D", str(data), *options]
    process = postmaster.spawn(command, account, log=subprocess.DEVNULL)
    file = places.socket_file(sockets)
    until(lambda: postmaster.is_ready(data, process.pid, file, 5432), "the orphan's start")
    return process


def test_an_orphan_of_ours_is_stopped(directory: Path, launch: Launch, fetch: Fetch, until: Until, gone: Gone) -> None:
    launcher = launch()
    data = launcher.start().data_directory
    launcher.stop()
    left = orphan(directory, data, ours=True, until=until)
    try:
        server = launcher.start()
        assert gone(left.pid)
        assert fetch(server.url(), "select 1") == 1
    finally:
        postmaster.stop(left)
    assert left.returncode == 0


def test_a_server_of_somebody_else_is_left_alone(directory: Path, launch: Launch, until: Until, gone: Gone) -> None:
    launcher = launch()
    data = launcher.start().data_directory
    launcher.stop()
    left = orphan(directory, data, ours=False, until=until)
    try:
        with pytest.raises(SetupError, match="not started from here") as refusal:
            launcher.start()
        assert refusal.value.code == "embedded_foreign_server"
        assert not gone(left.pid)
    finally:
        postmaster.stop(left)


def test_a_kill_during_initdb_leaves_nothing_half_made(
    directory: Path, owner: Owners, launch: Launch, until: Until
) -> None:
    app = owner(directory, fresh=True)
    until(lambda: list(directory.glob("postgres.new-*/data/base")), "the first files of initdb")
    app.kill()
    assert not (directory / "postgres").exists()
    with launch():
        assert not list(directory.glob("postgres.new-*"))


def test_a_forked_child_does_not_stop_its_parents_server(directory: Path, seed: Callable[[Path], None]) -> None:
    seed(directory)
    script = """
import os, sys
from pathlib import Path
from cortex_plane.embedded import EmbeddedPostgres
launcher = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
server = launcher.start()
if os.fork() == 0:
    launcher.stop()
    sys.exit()
os.wait()
assert launcher.start() is server
"""
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True, timeout=120)
    assert not (directory / "postgres" / "postmaster.pid").exists()
