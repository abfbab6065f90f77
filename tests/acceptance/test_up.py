"""`cortex up` as a newcomer meets it: on the embedded server, in an empty folder."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.planes import Plane


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, and reachable for the unprivileged user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(prefix="cortex up ") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.proves("D.18", "D.20")
def test_work_survives_a_stop_and_a_kill_of_everything(folder: Path) -> None:
    first = Plane(folder, CORTEX_PORT="0")
    first.wait_until_ready()
    assert "cortex_key_" in first.said
    assert (folder / ".cortex" / "access.json").stat().st_mode & 0o077 == 0
    assert (folder / ".cortex" / "database.json").stat().st_mode & 0o077 == 0
    first.cortex("agent", "create", "greeter", "--model", "scripted")
    submitted = first.json("job", "submit", "greeter")
    job = first.until(submitted["id"], "COMPLETED")
    assert first.end(signal.SIGINT) == 0
    assert "stopped" in first.said

    second = Plane(folder, CORTEX_PORT="0")
    second.wait_until_ready()
    assert "cortex_key_" not in second.said, "a kept key is not shown again"
    assert json.loads(second.cortex("job", "show", job["id"], "--json")) == job
    second.end(signal.SIGKILL)

    third = Plane(folder, CORTEX_PORT="0")
    third.wait_until_ready()
    assert json.loads(third.cortex("job", "show", job["id"], "--json")) == job
    assert "whole" in third.cortex("audit", "verify")
    assert third.end(signal.SIGTERM) == 0


def test_a_taken_port_is_replaced_and_a_lost_key_too(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        plane = Plane(folder, CORTEX_PORT=str(port))
        url = plane.wait_until_ready()
        assert not url.endswith(f":{port}")
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        assert plane.end(signal.SIGINT) == 0
    (folder / ".cortex" / "access.json").unlink()
    again = Plane(folder, CORTEX_PORT="0")
    again.wait_until_ready()
    assert "cortex_key_" in again.said
    assert json.loads(again.cortex("me", "--json"))["platform"] is True
    assert again.end(signal.SIGINT) == 0


def test_a_second_start_in_the_same_folder_is_refused_and_disturbs_nothing(folder: Path) -> None:
    plane = Plane(folder, CORTEX_PORT="0")
    plane.wait_until_ready()
    second = Plane(folder, CORTEX_PORT="0")
    assert second.process.wait(30) == 1
    assert second.process.stdout is not None
    said = second.process.stdout.read()
    second.process.stdout.close()
    assert "embedded_locked" in said
    assert "Traceback" not in said
    assert json.loads(plane.cortex("me", "--json"))["name"] == "Admin"
    assert plane.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("CORTEX_PORT", "many", "invalid_setting"),
        ("DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none", "unavailable"),
        ("CORTEX_HOST", "203.0.113.1", "cannot_listen"),
        ("CORTEX_POSTGRES_BINARIES", "/nonexistent", "embedded_"),
    ],
)
def test_a_wrong_setting_is_named(folder: Path, variable: str, value: str, code: str) -> None:
    plane = Plane(folder, **({"CORTEX_PORT": "0"} | {variable: value}))
    assert plane.process.stdout is not None
    said = plane.process.stdout.read()
    plane.process.stdout.close()
    assert plane.process.wait(30) in (1, 6), said
    assert code in said
    assert "Traceback" not in said
