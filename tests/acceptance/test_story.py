"""What a newcomer does in the first five minutes, over the command line; tests/browser does the same in the browser."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.planes import Plane

VERIFIER = Path(__file__).parents[2] / "examples" / "verify_export.py"


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

    @cached_property
    def job_id(self) -> str:
        assert self._running.stdout is not None
        return self._running.stdout.readline().split()[1]

    def asked(self) -> Any:
        return self._plane.asked(self.job_id)

    def ends(self) -> tuple[int, str]:
        said, _ = self._running.communicate(timeout=180)
        return self._running.returncode, said


@pytest.mark.proves("D.97")
def test_a_release_stops_and_is_approved_denied_edited_or_expires_and_all_four_are_proven(plane: Plane) -> None:
    approved, denied, edited = (Release(plane, version) for version in ("1.0.0", "2.0.0", "3.0.0"))
    expired = Release(plane, "4.0.0", "--within", "1")
    jobs = {release.job_id for release in (approved, denied, edited, expired)}
    card = plane.cortex("approval", "show", approved.asked()["id"])
    assert "deployments-need-a-person" in card
    assert "agent says" in card
    plane.cortex("approval", "approve", approved.asked()["id"], "--reason", "tested")
    plane.cortex("approval", "deny", denied.asked()["id"], "--reason", "not on a Friday")
    staging = json.dumps({"version": "3.0.0", "environment": "staging"})
    plane.cortex("approval", "approve", edited.asked()["id"], "--edit", staging)

    code, said = approved.ends()
    assert (code, "1.0.0 is in production." in said) == (0, True), said
    code, said = denied.ends()
    assert (code, "not on a Friday" in said) == (1, True), said
    assert edited.ends()[0] == 0
    code, said = expired.ends()
    assert (code, "timed out after 1 second" in said) == (1, True), said

    acts = [act for act in plane.world() if act["job"] in jobs and act["act"] == "deploy"]
    deployed = sorted((act["version"], act["environment"]) for act in acts)
    assert deployed == [("1.0.0", "production"), ("3.0.0", "staging")], "what ran is what was approved"

    plane.cortex("audit", "export", "trail.jsonl")
    verified = subprocess.run(
        [sys.executable, str(VERIFIER), "trail.jsonl", "--find", "approval_decision"],
        cwd=plane.folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "tested" in verified.stdout
    assert "not on a Friday" in verified.stdout
    assert "edited_from" in verified.stdout
    export = (plane.folder / "trail.jsonl").read_text()
    assert "approval_expired" in export


def test_the_example_of_the_readme_asks_before_it_ships(plane: Plane) -> None:
    hello = VERIFIER.parent / "hello.py"
    ran = subprocess.run(
        [sys.executable, str(hello)],
        cwd=plane.folder,
        env={**plane.environment, "PYTHONPATH": str(hello.parents[1])},
        input="y\n",
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ship {'version': '2.4'}? [y/n]" in ran.stdout
    assert "COMPLETED · audit whole: True" in ran.stdout
    # Whoever types gives the line end themselves.
    shown = ran.stdout.replace("[y/n] ", "[y/n] y\n")
    assert f"```text\n{shown}```" in (hello.parents[1] / "README.md").read_text()
    assert len(list(plane.folder.glob("*.shipped"))) == 1
