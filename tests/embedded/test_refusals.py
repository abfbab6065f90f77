"""What cannot work is refused, and the refusal says what to do."""

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cortex_plane.embedded import EmbeddedPostgres, binaries, launcher, postmaster
from cortex_plane.kernel.errors import SetupError

Launch = Callable[..., EmbeddedPostgres]
Owners = Callable[..., Any]
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("1[5-7]/bin"))


def refused(one: EmbeddedPostgres) -> SetupError:
    with pytest.raises(SetupError) as refusal:
        one.start()
    assert refusal.value.hint
    return refusal.value


@pytest.fixture
def mount(place: Path, as_root: None) -> Iterator[Callable[[str], Path]]:
    point = place / "disk"
    point.mkdir()

    def make(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "tmpfs", str(point)], capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
        return point

    yield make
    if point.is_mount():
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_no_binaries(place: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(binaries, "SYSTEM_ROOT", place)
    monkeypatch.setenv("PATH", str(place))
    error = refused(launch(fresh=True))
    assert error.code == "embedded_no_binaries"
    assert "pip install 'cortex-plane[embedded]'" in error.hint
    assert "DATABASE_URL" in error.hint


def fake_postgres(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True)
    for name in binaries.NEEDED:
        (directory / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (directory / name).chmod(0o755)
    return directory


def test_system_binaries_are_found_newest_first(place: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(binaries, "SYSTEM_ROOT", place)
    monkeypatch.setenv("PATH", str(fake_postgres(place / "path", "16.1")))
    for version in ("9.6", "15", "17", "14"):
        fake_postgres(place / version / "bin", version)
    found = [path.relative_to(place).as_posix() for path in binaries._candidates()]
    assert found == ["17/bin", "15/bin", "path"]


def test_unusable_binaries(place: Path, launch: Launch) -> None:
    error = refused(launch(binaries=place))
    assert "does not hold postgres and initdb" in error.message
    error = refused(launch(binaries=fake_postgres(place / "old", "14.2")))
    assert "PostgreSQL 14, and 15 or newer is needed" in error.message
    assert error.code == "embedded_binaries"


def test_foreign_files(place: Path, launch: Launch) -> None:
    data = place / ".cortex" / "postgres"
    data.mkdir(parents=True)
    (data / "holiday.jpg").touch()
    if os.geteuid() == 0:
        os.chown(data, 65534, 65534)
    error = refused(launch())
    assert error.code == "embedded_not_a_cluster"
    assert [path.name for path in data.iterdir()] == ["holiday.jpg"]


def test_an_empty_data_directory_is_welcome(place: Path, launch: Launch) -> None:
    data = place / ".cortex" / "postgres"
    data.mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        os.chown(data, 65534, 65534)
    with launch() as server:
        assert server.data_directory == data


@pytest.mark.skipif(not DEBIAN, reason="no system PostgreSQL older than the wheel's")
@pytest.mark.proves("D.19")
def test_another_major_version(launch: Launch) -> None:
    old = DEBIAN[0]
    version = int(old.parent.name)
    with launch(fresh=True, binaries=old) as server:
        assert server.version == version
        data = server.data_directory
    before = sorted((path, path.stat().st_mtime_ns) for path in data.rglob("*"))
    error = refused(launch())
    assert error.code == "embedded_other_version"
    assert f"made by PostgreSQL {version}" in error.message
    assert "are version 18" in error.message
    assert f"{binaries.BINARIES_SETTING}={old}" in error.hint
    assert "pg_dumpall" in error.hint
    assert sorted((path, path.stat().st_mtime_ns) for path in data.rglob("*")) == before
    with launch(binaries=old):
        pass


def test_a_version_that_is_not_on_this_machine(place: Path, launch: Launch) -> None:
    data = place / ".cortex" / "postgres"
    (data / "global").mkdir(parents=True)
    (data / "global" / "pg_control").touch()
    (data / "PG_VERSION").write_text("12\n")
    if os.geteuid() == 0:
        os.chown(data, 65534, 65534)
    error = refused(launch())
    assert error.code == "embedded_other_version"
    assert "Install PostgreSQL 12" in error.hint


def test_a_file_in_the_way(place: Path, launch: Launch) -> None:
    (place / ".cortex").touch()
    error = refused(launch())
    assert error.code == "embedded_directory"
    assert "not a directory" in error.message


@pytest.mark.proves("D.19")
def test_a_read_only_directory(place: Path, owner: Owners, stranger: int) -> None:
    directory = place / ".cortex"
    directory.mkdir(mode=0o555)
    report = owner(directory, stranger if os.geteuid() == 0 else None).report()
    assert report["code"] == "embedded_not_writable"
    assert "Permission denied" in report["message"]


def test_a_read_only_disk(launch: Launch, mount: Callable[[str], Path]) -> None:
    error = refused(launch(mount("ro")))
    assert error.code == "embedded_not_writable"
    assert "Read-only file system" in error.message


@pytest.mark.proves("D.19")
def test_a_full_disk_at_the_first_start(launch: Launch, mount: Callable[[str], Path]) -> None:
    disk = mount("size=4m")
    error = refused(launch(disk))
    assert error.code == "embedded_disk_full"
    assert "the disk is full" in error.message
    assert not list(disk.glob("postgres.new-*"))
    assert not (disk / "postgres").exists()


def test_a_full_disk_later(launch: Launch, mount: Callable[[str], Path]) -> None:
    disk = mount("size=64m")
    one = launch(disk)
    one.start()
    one.stop()
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    error = refused(one)
    assert error.code == "embedded_disk_full"
    (disk / "filler").unlink()
    one.start()
    one.stop()


def test_a_server_that_dies_is_quoted(place: Path, launch: Launch) -> None:
    error = refused(launch(settings={"fsync": "off", "shared_buffers": "plenty"}))
    assert error.code == "embedded_start_failed"
    assert 'invalid value for parameter "shared_buffers": "plenty"' in error.message
    assert str(place / ".cortex" / "postgres.log") in error.message
    with launch():
        pass


def test_a_server_that_never_answers(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "START_SECONDS", 0.2)
    monkeypatch.setattr(postmaster, "is_ready", lambda *_: False)
    one = launch()
    error = refused(one)
    assert error.code == "embedded_start_timeout"
    assert "for 0.2 seconds" in error.message
    assert one._child is None


def test_reserved_settings(launch: Launch) -> None:
    error = refused(launch(settings={"Port": "1"}))
    assert error.code == "embedded_setting"
