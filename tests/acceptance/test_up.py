"""`cortex up` as a newcomer meets it: on the embedded server, in an empty folder."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortex_plane import Client, JobDraft
from cortex_plane.jobs.model.jobs import SteeringResult
from cortex_plane.main import up
from cortex_plane.main.main import main
from tests.acceptance.planes import Plane, empty_folder
from tests.conftest import Urls
from tests.fixtures.servers import MASTER_KEY


@pytest.fixture
def folder() -> Iterator[Path]:
    with empty_folder("cortex up ") as folder:
        yield folder


async def _pause_after_the_first_step(folder: Path) -> tuple[str, SteeringResult]:
    async with Client.here(folder / ".cortex") as client:
        job = await client.jobs.submit(JobDraft(agent="release-demo", payload={"text": "1.0"}))
        async with asyncio.timeout(60):
            while job.step_index is None:
                await asyncio.sleep(0.01)
                job = await client.jobs.get(job.id)
        return str(job.id), await client.jobs.pause(job.id, "lunch")


@pytest.mark.proves("D.18", "D.20", "D.31", "D.597")
def test_work_survives_a_stop_and_a_kill_of_everything(folder: Path) -> None:
    """One plane, started three times: on a taken port, with the key it kept, and after that key was lost."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Plane(folder, CORTEX_PORT=str(port)) as first:
            url = first.wait_until_ready()
            assert not url.endswith(f":{port}")
            assert first.api.get("/readyz").status_code == 200
            assert "cortex_key_" not in first.said, "a platform key is written to its file, and printed nowhere"
            assert "access.json" in first.said
            assert (folder / ".cortex" / "access.json").stat().st_mode & 0o077 == 0
            assert (folder / ".cortex" / "database.json").stat().st_mode & 0o077 == 0
            first.cortex("agent", "create", "greeter", "--model", "scripted")
            greeting = first.json("job", "submit", "greeter")["id"]
            first.reached(greeting, "COMPLETED")
            greeted = first.get(f"/v1/jobs/{greeting}")
            assert first.json("job", "show", greeting) == greeted
            assert first.end(signal.SIGINT) == 0
            assert "stopped" in first.said

    with Plane(folder, CORTEX_PORT="0") as second:
        second.wait_until_ready()
        assert "cortex_key_" not in second.said
        assert second.get(f"/v1/jobs/{greeting}") == greeted
        job_id, receipt = asyncio.run(_pause_after_the_first_step(folder))
        assert (receipt.changed, receipt.job.holds) == (True, ["operator"])
        paused = second.reached(job_id, "PAUSED")
        assert paused["holds"] == ["operator"]
        before = second.acts(job_id)
        second.end(signal.SIGKILL)

    (folder / ".cortex" / "access.json").unlink()
    with Plane(folder, CORTEX_PORT="0") as third:
        third.wait_until_ready()
        assert "cortex_key_" not in third.said
        assert (folder / ".cortex" / "access.json").stat().st_mode & 0o077 == 0, "a lost key is replaced"
        assert third.json("me")["platform"] is True
        assert third.get(f"/v1/jobs/{greeting}") == greeted
        still = third.get(f"/v1/jobs/{job_id}")
        assert (still["status"], still["step_index"]) == ("PAUSED", paused["step_index"])
        assert third.acts(job_id) == before
        third.post(f"/v1/jobs/{job_id}/resume")
        third.approve(job_id)
        ended = third.reached(job_id, "COMPLETED", "FAILED")
        assert ended["status"] == "COMPLETED", ended
        assert third.acts(job_id) == ["tag", "deploy"]
        assert "whole" in third.cortex("audit", "verify")
        assert third.end(signal.SIGTERM) == 0


def test_a_second_start_in_the_same_folder_is_refused_and_disturbs_nothing(plane: Plane) -> None:
    code, said = _refused(Plane(plane.folder, CORTEX_PORT="0"))
    assert code == 1
    assert "embedded_locked" in said
    assert json.loads(plane.cortex("me", "--json"))["name"] == "Admin"


def test_on_a_database_of_its_own_no_demo_is_recommended(folder: Path, urls: Urls) -> None:
    """Its agents are not set up there."""
    databases = {"DATABASE_URL": urls.app, "DATABASE_ADMIN_URL": urls.admin}
    with Plane(folder, CORTEX_PORT="0", CORTEX_MASTER_KEY=MASTER_KEY, **databases) as there:
        there.wait_until_ready()
        assert ("job list" in there.said, "demo" in there.said) == (True, False), there.said
        assert "channels/try" not in there.said, "emulators are no place for people of a real database"
        assert [agent["slug"] for agent in there.get("/v1/agents")["items"]] == []
        assert there.end(signal.SIGINT) == 0, there.said


def test_a_wrong_setting_is_named(folder: Path) -> None:
    ended, said = _refused(Plane(folder, CORTEX_PORT="many"))
    assert ended == 1, said
    assert "invalid_setting" in said
    assert "CORTEX_PORT" in said


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none", "unavailable"),
        ("CORTEX_HOST", "203.0.113.1", "cannot_listen"),
        ("CORTEX_POSTGRES_BINARIES", "/nonexistent", "embedded_"),
    ],
)
def test_a_start_that_cannot_succeed_ends_with_the_reason(
    folder: Path,
    urls: Urls,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    code: str,
) -> None:
    """In this process: it ends before anything is started."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["cortex", "up"])
    monkeypatch.setattr(up, "configure_logs", lambda *_, **__: None)
    monkeypatch.delenv("DATABASE_ADMIN_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    if variable == "CORTEX_HOST":  # the only one that gets as far as a database
        monkeypatch.setenv("DATABASE_URL", urls.app)
    monkeypatch.setenv("CORTEX_PORT", "0")
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (1, 6)
    assert code in capsys.readouterr().err


def _refused(plane: Plane) -> tuple[int, str]:
    """The exit code of a plane that does not start, and what it says."""
    assert plane.process.stdout is not None
    said = plane.process.stdout.read()
    plane.process.stdout.close()
    assert "Traceback" not in said
    return plane.process.wait(30), said
