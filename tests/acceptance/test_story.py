"""What a newcomer does in the first five minutes, over the command line; tests/browser does the same in the browser."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.planes import Plane

VERIFIER = Path(__file__).parents[2] / "examples" / "verify_export.py"


@pytest.fixture
def plane() -> Iterator[Plane]:
    with tempfile.TemporaryDirectory(prefix="cortex-story-") as name:
        Path(name).chmod(0o755)
        plane = Plane(Path(name), CORTEX_PORT="0")
        plane.wait_until_ready()
        yield plane
        assert plane.end(signal.SIGINT) == 0


class Release:
    """`cortex demo run`, as somebody watches it."""

    def __init__(self, plane: Plane, version: str, *more: str) -> None:
        self._plane = plane
        self._running = subprocess.Popen(
            [sys.executable, "-m", "cortex_plane", "demo", "run", version, *more],
            cwd=plane.folder,
            env=plane.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._running.stdout is not None
        self.job_id = self._running.stdout.readline().split()[1]

    def asked(self) -> Any:
        return self._plane.asked(self.job_id)

    def ends(self) -> tuple[int, str]:
        said, _ = self._running.communicate(timeout=60)
        return self._running.returncode, said


@pytest.mark.proves("D.97")
def test_a_release_stops_and_is_approved_denied_edited_or_expires_and_all_four_are_proven(
    plane: Plane,
) -> None:
    approved = Release(plane, "1.0.0")
    card = plane.cortex("approval", "show", approved.asked()["id"])
    assert "deployments-need-a-person" in card
    assert "agent says" in card
    plane.cortex("approval", "approve", approved.asked()["id"], "--reason", "tested")
    code, said = approved.ends()
    assert (code, "1.0.0 is in production." in said) == (0, True), said

    denied = Release(plane, "2.0.0")
    plane.cortex("approval", "deny", denied.asked()["id"], "--reason", "not on a Friday")
    code, said = denied.ends()
    assert (code, "not on a Friday" in said) == (1, True), said

    edited = Release(plane, "3.0.0")
    staging = json.dumps({"version": "3.0.0", "environment": "staging"})
    plane.cortex("approval", "approve", edited.asked()["id"], "--edit", staging)
    assert edited.ends()[0] == 0

    expired = Release(plane, "4.0.0", "--within", "1")
    code, said = expired.ends()
    assert (code, "timed out after 1 second" in said) == (1, True), said

    acts = [json.loads(line) for line in (plane.folder / ".cortex/demo/acts.jsonl").read_text().splitlines()]
    deployed = [(act["version"], act["environment"]) for act in acts if act["act"] == "deploy"]
    assert deployed == [("1.0.0", "production"), ("3.0.0", "staging")], "what ran is what was approved"

    plane.cortex("audit", "export", "trail.jsonl")
    verified = subprocess.run(
        [sys.executable, str(VERIFIER), "trail.jsonl", "--find", "approval_decision"],
        cwd=plane.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "tested" in verified.stdout
    assert "not on a Friday" in verified.stdout
    assert "edited_from" in verified.stdout
    export = (plane.folder / "trail.jsonl").read_text()
    assert "approval_expired" in export


def test_the_example_asks_before_it_ships(plane: Plane) -> None:
    example = VERIFIER.parent / "hello.py"
    ran = subprocess.run(
        [sys.executable, str(example)],
        cwd=plane.folder,
        env={**plane.environment, "PYTHONPATH": str(example.parents[1])},
        input="y\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ship {'version': '2.4'}? [y/n]" in ran.stdout
    assert "COMPLETED · audit whole: True" in ran.stdout
    assert len(list(plane.folder.glob("*.shipped"))) == 1
