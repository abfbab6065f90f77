"""Atlases on the command line, against a plane that serves."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from cortex_plane.tenancy.model.orgs import Role
from tests.cli.test_cli_absences import live
from tests.cli.test_cli_jobs import Live
from tests.fixtures.atlases import ATLAS, manifest
from tests.fixtures.hostile import HOSTILE, INVISIBLE

__all__ = ["live"]


def words_of(text: str) -> str:
    """However wide the window is."""
    return " ".join(text.split())


@pytest.mark.proves("D.320", "D.321", "D.323", "D.324", "D.328")
def test_a_steward_publishes_compares_and_retires(live: Live) -> None:
    shell = live.shell
    assert "nothing yet" in shell.run("atlas", "list").stdout
    first, second = shell.folder / "first.json", shell.folder / "second.json"
    first.write_text(manifest())
    changed = json.loads(manifest("2.0.0", description=HOSTILE))
    changed["policies"][0]["type"] = "deny"
    second.write_text(json.dumps(changed))
    assert f"published {ATLAS} 1.0.0 with 2 gates" in words_of(shell.run("atlas", "publish", str(first)).stdout)
    assert "nothing changes" in shell.run("atlas", "publish", str(first)).stdout
    made = shell.one("atlas", "publish", str(second))
    assert made["created"] is True
    (listed,) = shell.many("atlas", "list")
    assert (listed["holds"], listed["newest"], listed["versions"]) == ("2.0.0", "2.0.0", 2)
    assert [each["version"] for each in shell.many("atlas", "list", ATLAS)] == ["2.0.0", "1.0.0"]
    assert shell.one("atlas", "get", ATLAS)["version"] == "2.0.0"
    assert shell.run("atlas", "get", ATLAS, "--version", "1.0.0", "--source").stdout == manifest()
    told = shell.run("atlas", "diff", ATLAS, "1.0.0").stdout
    assert "~ policy ask-before-deleting" in told
    assert "type: requires_approval → deny" in told
    assert "1.0.0 → 2.0.0: 0 added, 0 removed, 2 changed" in told
    for shown in (told, shell.run("atlas", "list").stdout, shell.run("atlas", "get", ATLAS).stdout):
        assert not INVISIBLE & set(shown)
    assert shell.one("atlas", "diff", ATLAS, "2.0.0", "1.0.0")["changed"] == 2
    session = shell.one("session", "create", "deployer", "--atlas", ATLAS)
    assert f"{ATLAS} 2.0.0" in words_of(shell.run("session", "show", str(session["id"])).stdout)
    job = shell.one("job", "submit", "deployer", "--atlas", ATLAS)
    bound = shell.one("session", "show", str(job["session_id"]))["atlases"]
    assert isinstance(bound, list)
    assert bound[0]["version"] == "2.0.0"
    assert "new sessions are bound to 1.0.0" in shell.run("atlas", "retire", ATLAS, "2.0.0").stdout
    assert "was retired before" in shell.run("atlas", "retire", ATLAS, "2.0.0").stdout
    skills = shell.folder / "skills.json"
    skills.write_text(json.dumps({"atlases": [ATLAS]}))
    shell.run("agent", "update", "deployer", "--skill-config", str(skills))
    none = shell.run("atlas", "retire", ATLAS, "1.0.0").stdout
    assert "no version holds" in none
    assert "deployer" in none
    assert "cortex atlas publish" in words_of(shell.run("job", "submit", "deployer", expect=4).stderr)


@pytest.mark.proves("D.320", "D.321")
def test_what_is_wrong_says_what_to_do(live: Live) -> None:
    shell = live.shell
    bad, other = shell.folder / "bad.yaml", shell.folder / "other.json"
    bad.write_text("atlas_version: '1.0'\nnmae: x\n")
    other.write_text(manifest(name="Other"))
    good = shell.folder / "good.json"
    good.write_text(manifest())
    shell.run("atlas", "publish", str(good))
    for words, code, said in (
        (["publish", str(bad)], 2, "bad.yaml:2"),
        (["publish", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["publish", str(other)], 4, "Raise `version`"),
        (["get", "com.acme.none"], 3, "atlas_not_found"),
        (["get", ATLAS, "--version", "9"], 3, "atlas_version_not_found"),
        (["diff", ATLAS, "1.0.0", "9"], 3, "atlas_version_not_found"),
        (["retire", ATLAS, "9"], 3, "atlas_version_not_found"),
    ):
        assert said in words_of(shell.run("atlas", *words, expect=code).stderr), words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.proves("D.320")
def test_a_terminal_is_shown_a_published_file_without_what_it_would_obey(live: Live) -> None:
    text = manifest(description="turned\u202earound")
    assert "\\u202e" in text
    text = text.replace("\\u202e", "\u202e")
    file = live.shell.folder / "first.json"
    file.write_text(text)
    live.shell.run("atlas", "publish", str(file))
    show = ("atlas", "get", ATLAS, "--source")
    assert live.shell.run(*show).stdout == text, "into a file as it was published"
    shown = live.shell.run(*show, out=Terminal()).stdout
    assert shown == text.replace("\u202e", "\\x202e")


@pytest.mark.proves("D.800", "D.801", "D.803", "D.804")
def test_changes_that_wait_are_announced_shown_and_decided(live: Live) -> None:
    """An atlas of somebody else, policies where the org wants two people, and the platform's own."""
    shell, world = live.shell, live.world
    stella = live.begin(world.person(Role.STEWARD, name="Stella"))()
    theirs: dict[str, Any] = {"CORTEX_KEY": stella.secret}
    file = shell.folder / "atlas.json"
    file.write_text(manifest())
    shell.run("atlas", "publish", str(file))
    file.write_text(manifest("2.0.0", policies=[]))
    answer = words_of(shell.run("atlas", "publish", str(file), **theirs).stdout)
    assert f"{ATLAS} 2.0.0 does not hold yet: the atlas belongs to somebody else" in answer
    assert "it waits for approval" in answer
    assert "Ada may decide it" in answer
    proposal = shell.one("atlas", "publish", str(file), **theirs)["waits"]
    assert isinstance(proposal, dict)
    id = str(proposal["approval_id"])
    assert proposal["created"] is False
    card = words_of(shell.run("approval", "show", id).stdout)
    for words in ("atlas.publish", "instead of version 1.0.0", "- policy ask-before-deleting", "0 looked at", "proposed by Stella",
                  "not looked at:", "If nobody decides by then, nothing changes."):  # fmt: skip
        assert words in card
    assert "Stella (proposed it): none of them may approve it" in card
    assert f"atlas.publish is approved; {ATLAS}" in words_of(
        shell.run("approval", "approve", id, "--version", "1").stdout
    )
    (listed,) = shell.many("atlas", "list")
    assert (listed["holds"], listed["owner"]) == ("2.0.0", "Ada")
    said = shell.run("atlas", "hand-over", ATLAS, "--member", str(stella.member_id)).stdout
    assert f"{ATLAS} belongs to Stella now" in words_of(said)
    shell.run("atlas", "hand-over", ATLAS, expect=2)

    shell.run("org", "update", "--policy-changes", "approval")
    rules = shell.folder / "rules.yaml"
    rules.write_text("policies: [{name: frozen, target: deploy*, effect: deny}]")
    answer = words_of(shell.run("policy", "apply", str(rules), **theirs).stdout)
    assert "version 0 holds until somebody approves this" in answer
    waits = shell.one("policy", "apply", str(rules), **theirs)["waits"]
    assert isinstance(waits, dict)
    assert "+ org frozen" in words_of(shell.run("approval", "show", str(waits["approval_id"])).stdout)
    shell.run("approval", "deny", str(waits["approval_id"]), "--version", "1", "--reason", "Not on a Friday")
    assert "version 0:" in shell.run("policy", "show").stdout

    platform = shell.folder / "platform.yaml"
    platform.write_text("policies: [{name: no-rm, target: rm*, effect: deny}]")
    assert "dry run: 1 added, 1 removed" in words_of(
        shell.run("platform", "policy", "apply", str(platform), "--dry-run").stdout
    )
    shell.run("platform", "policy", "apply", str(platform), expect=5, **theirs)
    refused = shell.run("platform", "policy", "apply", str(platform), expect=2).stderr
    assert "- platform: critical-needs-approval" in refused
    assert "--merge to keep them, or --yes to remove them" in refused
    merged = shell.run("platform", "policy", "apply", str(platform), "--merge").stdout
    assert "applied: 1 added, 0 removed" in words_of(merged)
    assert "critical-needs-approval" in shell.run("platform", "policy", "show").stdout
    removed = shell.run("platform", "policy", "apply", str(platform), "--yes").stdout
    assert "applied: 0 added, 1 removed" in words_of(removed)
    assert "no-rm" in shell.run("platform", "policy", "show").stdout
