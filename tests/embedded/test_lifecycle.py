"""Starting, stopping, starting again: what a plane does every day."""

import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from cortex_plane.embedded import EmbeddedPostgres, Server, places
from cortex_plane.kernel.errors import SetupError

Launch = Callable[..., EmbeddedPostgres]
Fetch = Callable[[str, str], Any]


def test_first_start_and_restart(place: Path, launch: Launch, fetch: Fetch) -> None:
    phrases: list[str] = []
    launcher = launch(fresh=True, on_progress=phrases.append)
    server = launcher.start()
    assert phrases == ["creating the database cluster", f"starting PostgreSQL {server.version}"]
    assert launcher.start() is server
    fetch(server.url(), "create table kept as select 42 as n")
    launcher.stop()
    launcher.stop()
    with pytest.raises(FileNotFoundError):
        fetch(server.url(), "select 1")

    phrases.clear()
    again = launcher.start()
    assert phrases == [f"starting PostgreSQL {server.version}"]
    assert again == server
    assert fetch(again.url(), "select n from kept") == 42


def test_the_server_is_private_and_plain(place: Path, launch: Launch, fetch: Fetch) -> None:
    with launch() as server:
        assert server.data_directory == place / ".cortex" / "postgres"
        assert server.superuser == "postgres"
        for private in (server.data_directory, Path(server.host)):
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
        shown = json.loads(fetch(server.url(), "select json_object_agg(name, setting) from pg_settings"))
        assert fetch(server.url(), "select getdatabaseencoding()") == "UTF8"
        upper = fetch(server.url(), "select upper('é')")
    expected = {
        "listen_addresses": "",
        "max_connections": "200",
        "shared_buffers": "16384",
        "password_encryption": "scram-sha-256",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "log_timezone": "UTC",
        "TimeZone": "UTC",
        "data_checksums": "on",
    }
    assert {name: shown[name] for name in expected} == expected
    # Version 17 brought a locale that knows more letters than ASCII's.
    assert upper == ("É" if server.version >= 17 else "é")


def test_settings_of_the_caller_win(launch: Launch, fetch: Fetch) -> None:
    with launch(settings={"fsync": "off", "wal_level": "logical", "max_connections": "17"}) as server:
        assert fetch(server.url(), "show wal_level") == "logical"
        assert fetch(server.url(), "show max_connections") == "17"


def test_other_databases_and_roles_need_no_password_on_the_socket(launch: Launch, fetch: Fetch) -> None:
    with launch() as server:
        fetch(server.url(), 'create role "app user" login')
        fetch(server.url(), 'create database "the plane"')
        assert fetch(server.url("the plane", "app user"), "select current_user") == "app user"


def test_a_warm_restart_is_fast(launch: Launch) -> None:
    launcher = launch()
    launcher.start()
    times: list[float] = []
    for _ in range(2):
        launcher.stop()
        begin = time.perf_counter()
        launcher.start()
        times.append(time.perf_counter() - begin)
    assert min(times) < 5, "as slow as a first start on a busy machine"


@pytest.mark.proves("D.19")
def test_two_side_by_side(place: Path, launch: Launch, fetch: Fetch) -> None:
    with launch(place / "one") as one, launch(place / "two") as two:
        fetch(one.url(), "create table here ()")
        assert fetch(one.url(), "select to_regclass('here') is not null")
        assert fetch(two.url(), "select to_regclass('here') is null")


def test_tcp_asks_for_the_password(place: Path, launch: Launch, fetch: Fetch) -> None:
    launcher = launch(tcp=True)
    server = launcher.start()
    file = place / ".cortex" / "postgres.password"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert server.host == "127.0.0.1"
    assert server.password == file.read_text().strip()
    assert server.password not in repr(server)
    assert fetch(server.url(), "show unix_socket_directories") == ""
    with pytest.raises(asyncpg.InvalidPasswordError):
        fetch(server.url().replace(server.password, "guess"), "select 1")
    fetch(server.url(), f"create role app login password '{server.password}'")
    assert fetch(server.url(user="app"), "select current_user") == "app"

    launcher.stop()
    file.unlink()
    again = launcher.start()
    assert again.password not in (None, server.password)
    assert fetch(again.url(), "select 1") == 1


@pytest.mark.parametrize("name", ["with some spaces", "naïve & 100% ?x=1#y", "a,b", 'it\'s "quoted"'])
@pytest.mark.proves("D.19")
def test_awkward_paths(place: Path, launch: Launch, fetch: Fetch, name: str) -> None:
    with launch(place / name / ".cortex") as server:
        assert fetch(server.url(), "select 1") == 1
        assert (Path(server.host).parent == place / "short") == ("," in name)


@pytest.mark.proves("D.19")
def test_a_long_path_gets_a_short_socket(place: Path, launch: Launch, fetch: Fetch) -> None:
    with launch(place / ("long" * 20) / ".cortex") as server:
        sockets = Path(server.host)
        assert sockets.parent == place / "short"
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert fetch(server.url(), "select 1") == 1
    assert not sockets.exists()


def test_a_socket_directory_of_somebody_else_is_not_used(
    place: Path, launch: Launch, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = place / ("long" * 20)
    with launch(directory) as server:
        taken = Path(server.host)
    taken.mkdir(mode=0o755)
    # Nothing private is left, so the server asks for a password.
    with launch(directory) as server:
        assert (server.host, server.password is None) == ("127.0.0.1", False)
        assert fetch(server.url(), "select 1") == 1
    other = place / "other"
    other.mkdir()
    monkeypatch.setattr(places, "SHORT_ROOTS", (place / "short", other))
    with launch(directory) as server:
        assert Path(server.host).parent == other


def test_a_symbolic_link_is_no_socket_directory(place: Path, launch: Launch) -> None:
    directory = place / ("long" * 20)
    with launch(directory) as server:
        taken = Path(server.host)
    mine = place / "mine"
    mine.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(mine, server.data_directory.stat().st_uid, -1)
    taken.symlink_to(mine)
    with launch(directory) as server:
        assert server.host == "127.0.0.1"


def test_a_large_log_is_set_aside(place: Path, launch: Launch) -> None:
    launcher = launch()
    file = place / ".cortex" / "postgres.log"
    with file.open("wb") as output:
        output.truncate(places.MAX_LOG_BYTES + 1)
    with launcher:
        assert file.stat().st_size < 10_000
        assert "ready to accept connections" in file.read_text()
    assert (place / ".cortex" / "postgres.log.1").stat().st_size == places.MAX_LOG_BYTES + 1


def test_a_thread_is_refused(launch: Launch) -> None:
    caught: list[SetupError] = []

    def start() -> None:
        try:
            launch().start()
        except SetupError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [error.code for error in caught] == ["embedded_thread"]


def test_urls_are_encoded() -> None:
    server = Server("/a b/c@d", 5432, 18, Path("/data"))
    assert server.url("x/y", "me@home") == (
        "postgresql://me%40home@/x%2Fy?host=%2Fa%20b%2Fc%40d&port=5432&sslmode=disable"
    )
