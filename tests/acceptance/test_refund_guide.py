"""docs/guides/refunds.md, block by block: from an empty folder to what a worker does with refunds of 40, 200 and 600 EUR."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.planes import Plane, empty_folder
from tests.acceptance.test_doc_snippets import ROOT, Block, blocks_of

GUIDE = ROOT / "docs" / "guides" / "refunds.md"
UP = "cortex up "
JOB_ID = re.compile(r"\bid +([0-9a-f-]{36})")


class Reader:
    """Somebody who follows the guide: saves each file, and types each command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job_id = folder, ""
        self.plane: Plane | None = None

    def follow(self, block: Block) -> None:
        word, *names = block.info
        if names:
            (self.folder / names[0]).write_text(block.text)
        elif word == "sh" and block.text.startswith(UP):
            self.plane = Plane(self.folder, *shlex.split(block.text.removeprefix(UP)), CORTEX_PORT="0")
            self.plane.wait_until_ready()
            self.plane.until(self._has_tools)
        elif word == "sh":
            for line in block.text.splitlines():
                self.type(line)
        else:
            assert word == "console", f"{block}: nobody can follow this"
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                assert self.type(command) == output, f"{block}: {command}"

    def _has_tools(self) -> bool:
        """Its worker starts beside it; whoever types is slower."""
        assert self.plane is not None
        return "refund.create" in [tool["name"] for tool in self.plane.get("/v1/tools")["items"]]

    def type(self, line: str) -> str:
        words = shlex.split(line.replace("JOB_ID", self.job_id), comments=True)
        assert words[0] == "cortex"
        done = subprocess.run(
            [sys.executable, "-m", "cortex_plane", *words[1:]],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if words[1:3] == ["job", "submit"]:
            found = JOB_ID.search(done.stdout)
            assert found is not None, done.stdout
            self.job_id = found[1]
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        if self.plane is not None:
            return self.plane.environment
        return {name: value for name, value in os.environ.items() if not name.startswith(("CORTEX_", "DATABASE_"))}


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """After the last block of the guide."""
    with empty_folder("cortex-refunds-") as folder:
        reader = Reader(folder)
        try:
            for block in blocks_of(GUIDE):
                reader.follow(block)
            yield reader
        finally:
            if reader.plane is not None:
                assert reader.plane.end(signal.SIGINT) == 0, reader.plane.said


def refund(order: str, amount: float) -> dict[str, Any]:
    return {"calls": [{"tool": "refund.create", "arguments": {"order_id": order, "amount": amount}}]}


def answer(order: str) -> dict[str, Any]:
    arguments = {"gate": "which-order", "answers": {"order-id": order}}
    return {"calls": [{"tool": "plane.answer", "arguments": arguments}]}


@pytest.mark.proves("S5.266")
def test_following_the_guide_pays_a_refund(reader: Reader) -> None:
    assert (reader.folder / "refunds.log").read_text() == "A-17 40\n"


@pytest.mark.proves("S5.266")
@pytest.mark.parametrize(
    ("order", "amount", "named", "status", "votes", "scenario"),
    [
        ("A-1", 40, "A-1", "COMPLETED", None, "40 EUR run once the order is named"),
        ("A-2", 200, "A-2", "WAITING_FOR_APPROVAL", 1, "200 EUR wait for one person"),
        ("A-3", 600, "A-3", "WAITING_FOR_APPROVAL", 2, "600 EUR wait for two people"),
        ("B-2", 40, "A-17", "COMPLETED", None, "A refund of another order is denied"),
    ],
)
def test_a_worker_does_what_the_scenarios_say(
    reader: Reader, order: str, amount: float, named: str, status: str, votes: int | None, scenario: str
) -> None:
    plane = reader.plane
    assert plane is not None
    outcomes = json.loads(reader.type("cortex atlas test --live --scenarios refunds.scenarios.yaml --json"))
    (said,) = (one["found"] for one in outcomes if one["name"] == scenario)
    slug = f"refund-{order.lower()}"
    script = [refund(order, amount), answer(named), refund(order, amount), {"text": "Done."}]
    (reader.folder / f"{slug}.json").write_text(json.dumps(script))
    reader.type(
        f"cortex agent create {slug} --model scripted --script {slug}.json --app shop --atlas com.example.refunds"
    )
    job_id = plane.post("/v1/jobs", agent=slug, payload={"text": "Please refund."})["id"]
    job = plane.reached(job_id, "COMPLETED", "FAILED", "WAITING_FOR_APPROVAL")
    assert (job["status"], said["votes"]) == (status, votes)
    steps = plane.get(f"/v1/jobs/{job_id}/steps")["items"]
    calls = [call for step in steps for call in step["calls"] if call["tool_name"] == "refund.create"]
    paid = f"{order} {amount}\n" in (reader.folder / "refunds.log").read_text()
    if status == "WAITING_FOR_APPROVAL":
        card = plane.asked(job_id)
        assert (card["rule"].partition("@")[0], card["quorum"]["votes"]) == (said["rule"], votes)
        assert (said["decision"], paid) == ("requires_approval", False)
    else:
        assert [call["status"] for call in calls] == ["rejected", "completed" if paid else "rejected"]
        assert said["decision"] == ("allow" if paid else "deny")
        assert paid is (order == named)
