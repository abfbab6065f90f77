"""What a newcomer sees of gates: one command after `cortex up` shows each mode, and the last gate is for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.acceptance.planes import Plane


@pytest.mark.proves("D.396", "D.395", "D.402")
def test_one_command_shows_each_mode_of_a_gate(plane: Plane) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "cortex_plane", "demo", "gates"],
        cwd=plane.folder, env=plane.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert demo.stdout is not None
    job_id = demo.stdout.readline().split()[1]
    card = plane.cortex("approval", "show", plane.asked(job_id)["id"])
    assert "gate:demo.support/money" in card
    assert "Is this refund owed to the customer?" in card
    plane.approve(job_id)
    said, _ = demo.communicate(timeout=180)
    assert demo.returncode == 0, said
    place = 0
    for line in (
        "gate onboarding asks as the session begins",
        "gate onboarding is answered: agree = true",
        "gate onboarding is passed: opens desk, tells house-rules",
        "gate delete-confirm asks before ticket.delete runs",
        "gate delete-confirm is answered for ticket.delete: for-ever = understood",
        "gate deletions looks on after ticket.delete ended",
        "gate money asks before refund.pay runs",
        "gate money is passed",
        "COMPLETED",
        "delete 8",
        "refund 7",
    ):
        found = said.find(line, place)
        assert found >= 0, f"{line!r} does not come after what came before it:\n{said}"
        place = found
    assert "gate refund-hint advises because of “money back”" in said
    assert "gate admin-access asks before ticket.delete runs" in said
    assert '{"' not in "".join(part for part in said.splitlines() if part.startswith("      gate "))
    acts = [act for act in plane.world() if act["job"] == job_id]
    assert [(act["act"], act["ticket"]) for act in acts] == [("delete", "8"), ("refund", "7")]
    plane.cortex("audit", "export", "gates.jsonl")
    trail = (plane.folder / "gates.jsonl").read_text()
    for fact in ("checkpoint_triggered", "checkpoint_response", "checkpoint_passed", "checkpoint_blocked"):
        assert fact in trail
    plane.require_whole_audit()
