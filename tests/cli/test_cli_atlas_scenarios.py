"""The stewards' bench on the command line, without a plane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.main.main import app
from tests.fixtures.hostile import INVISIBLE

EXAMPLES = Path(__file__).parents[2] / "examples" / "atlases"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("acme-support.yaml", "acme-support.scenarios.yaml"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    return tmp_path


@pytest.mark.proves("D.358")
def test_scenarios_beside_an_atlas_are_played(folder: Path) -> None:
    done = CliRunner().invoke(app, ["atlas", "test", "acme-support.yaml"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "✓ Nothing runs before the terms are agreed to"
    assert lines[-1] == f"{len(lines) - 1} of {len(lines) - 1} are as expected"


@pytest.mark.proves("D.358")
def test_what_differs_is_told_with_its_line_and_ends_with_1(folder: Path) -> None:
    name = json.dumps("turned \u202earound \u200b")
    expect = "{decision: allow, questions: []}"
    (folder / "more.yaml").write_text(f"scenarios:\n- name: {name}\n  call: ticket.get\n  expect: {expect}\n")
    command = ["atlas", "test", "acme-support.yaml", "--scenarios", "more.yaml"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "more.yaml:2" in done.stdout
    assert "decision: expected allow, and it is deny" in done.stdout
    assert "rule: gate:com.acme.support/onboarding" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 of 1 are as expected"
    assert "✗ turned \\x202earound \\x200b" in done.stdout
    assert not INVISIBLE & set(done.stdout)
    both = CliRunner().invoke(app, [*command, "--scenarios", "acme-support.scenarios.yaml", "--json"])
    assert both.exit_code == 1
    first, second, *_ = json.loads(both.stdout)
    assert (first["passed"], first["line"], first["found"]["questions"]) == (False, 2, ["agree-terms"])
    assert (second["passed"], second["faults"]) == (True, [])


@pytest.mark.proves("D.358")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "cannot be read"),
        (["acme-support.scenarios.yaml"], "is not a key of"),
        (["acme-support.yaml", "--scenarios", "nowhere.yaml"], "cannot be read"),
        (["acme-support.yaml", "--scenarios", "acme-support.yaml"], "is not a key of a scenario file"),
        (["alone.yaml"], "There are no scenarios: alone.scenarios.yaml"),
    ],
)
def test_what_cannot_be_read_is_told(folder: Path, arguments: list[str], said: str) -> None:
    (folder / "alone.yaml").write_text((EXAMPLES / "acme-support.yaml").read_text())
    done = CliRunner().invoke(app, ["atlas", "test", *arguments])
    assert isinstance(done.exception, InvalidInput)
    assert said in done.exception.message
