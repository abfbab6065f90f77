"""Atlas files on the command line, without a plane; and their schema over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cortex_plane.gates.model.atlases import MAX_GATES, schema
from cortex_plane.gates.rules.answers import MAX_MATCHED
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.main.main import app
from cortex_plane.policies import files as policy_files
from tests.fixtures.external_gates import desk, gate, governed, opened, question, sent
from tests.fixtures.hostile import HOSTILE, INVISIBLE
from tests.fixtures.people import World
from tests.gates.files import EXAMPLES, HEAD, SPEC
from tests.gates.test_atlas_documents import _large as large


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text((EXAMPLES / "acme-support.yaml").read_text())
    (tmp_path / "spec.yaml").write_text(SPEC.read_text())
    (tmp_path / "bad.yaml").write_text(HEAD + "checkponts: []\n")
    return tmp_path


@pytest.mark.proves("D.317")
def test_a_file_that_holds_is_ok_with_its_counts(folder: Path) -> None:
    done = CliRunner().invoke(app, ["atlas", "validate", "good.yaml"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "good.yaml: ok, com.acme.support 2.1.0: 6 gates, 2 capabilities, 2 contexts, 1 policies, 6 actions\n"
    )


@pytest.mark.proves("D.317")
def test_warnings_are_told_and_are_faults_only_where_somebody_says_so(folder: Path) -> None:
    done = CliRunner().invoke(app, ["atlas", "validate", "spec.yaml"])
    assert done.exit_code == 0
    assert "warning: spec.yaml:28: the action `ticket.list` is not declared" in done.stderr
    assert CliRunner().invoke(app, ["atlas", "validate", "spec.yaml", "--strict"]).exit_code == 1
    assert CliRunner().invoke(app, ["atlas", "validate", "good.yaml", "--strict"]).exit_code == 0


@pytest.mark.proves("D.317")
def test_what_is_wrong_is_told_with_file_and_line_and_the_other_files_are_read_too(folder: Path) -> None:
    done = CliRunner().invoke(app, ["atlas", "validate", "bad.yaml", "good.yaml", "nowhere.yaml"])
    assert done.exit_code == 2
    assert done.stdout.startswith("good.yaml: ok")
    told = done.stderr.splitlines()
    assert told[0].startswith("bad.yaml:6: `checkponts` is not a key of an atlas; did you mean `checkpoints`?")
    assert any(line.startswith("nowhere.yaml: nowhere.yaml cannot be read: No such file") for line in told)


@pytest.mark.proves("D.317")
def test_programs_read_json(folder: Path) -> None:
    done = CliRunner().invoke(app, ["atlas", "validate", "good.yaml", "bad.yaml", "--json"])
    good, bad = json.loads(done.stdout)
    assert done.exit_code == 2
    assert (good["ok"], good["atlas_id"], good["gates"]) == (True, "com.acme.support", 6)
    assert len(good["digest"]) == 64
    assert bad["ok"] is False
    assert bad["faults"][0].startswith("bad.yaml:6: ")


@pytest.mark.proves("D.317")
def test_standard_input_is_read_and_nothing_in_a_file_reaches_the_terminal_raw(folder: Path) -> None:
    done = CliRunner().invoke(app, ["atlas", "validate", "-"], input=HEAD)
    assert (done.exit_code, done.stdout.split(":")[0]) == (0, "stdin")
    wrong = CliRunner().invoke(app, ["atlas", "validate", "-"], input=HEAD + json.dumps(HOSTILE) + ": 1\n")
    assert wrong.exit_code == 2
    assert not INVISIBLE & set(wrong.output)
    (folder / "latin.yaml").write_bytes(b"name: \xe9\n")
    assert "not UTF-8" in CliRunner().invoke(app, ["atlas", "validate", "latin.yaml"]).stderr


def _bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return HEAD + "\n".join(lines)


GATE = "checkpoints:\n  - checkpoint_id: g\n    mode: advisory\n    trigger: {type: session_start}\n"
BAD = {
    "unknown key": ("checkponts: []\n", "6: `checkponts` is not a key of an atlas; did you mean `checkpoints`?"),
    "unknown key far within": (GATE + "    guidance: {contnet: x}\n", "10: `contnet` is not a key of `guidance`; did you mean `content`?"),
    "duplicate id": (GATE + GATE.partition("\n")[2], "10: the checkpoint_id `g` is taken by line 7."),
    "the same key twice": ("description: a\ndescription: b\n", "7: `description` stands here twice (first in line 6)."),
    "dangling reference": (GATE + "    inject_contexts: [nowhere]\n", "10: there is no context `nowhere`"),
    "dangling capability": (GATE + "    unlock_capabilities: [nowhere]\n", "10: there is no capability `nowhere`"),
    "a text for a list": ("checkpoints: all\n", "6: `checkpoints` must be a list"),
    "a number for a text": ("description: 12\n", "6: `description` must be a text"),
    "look-around": (
        GATE.replace("{type: session_start}", "{type: keyword, match_mode: regex, patterns: ['(?<=a)b']}"),
        "9: `(?<=a)b` is not a regular expression that can be used",
    ),
    "a bomb": (_bomb().removeprefix(HEAD), "6: anchors and aliases (& and *) are not read"),
    "an alias of itself": ("description: &a\n  - *a\n", "6: anchors and aliases (& and *) are not read"),
    "code": ("description: !!python/object/apply:os.system [ls]\n", "6: the tag tag:yaml.org,2002:python/object"),
    "two megabytes": (
        f"context_blocks:\n  - {{context_id: a, content: {'x' * 2_097_152}}}\n",
        "7: `content` has 2097152 characters; the limit is 1048576.",
    ),
    "very deep": ("description: " + "[" * 10_000 + "\n", "6: this is nested deeper than 40 levels."),
}  # fmt: skip


@pytest.mark.proves("D.314", "D.315", "D.317", "D.320")
@pytest.mark.parametrize("what", BAD)
async def test_what_cannot_be_an_atlas_is_refused_at_both_doors_with_the_same_line(
    http: httpx.AsyncClient, world: World, folder: Path, what: str
) -> None:
    part, said = BAD[what]
    (folder / "mine.yaml").write_text(HEAD + part)
    done = CliRunner().invoke(app, ["atlas", "validate", "mine.yaml"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"mine.yaml:{said}" in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
    body = {"manifest": HEAD + part, "name": "mine.yaml"}
    answer = await http.post("/v1/atlases", json=body, headers=world.admin.headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_atlas")
    assert f"mine.yaml:{said}" in answer.json()["detail"]
    listed = await http.get("/v1/atlases", headers=world.admin.headers)
    assert listed.json()["items"] == []


@pytest.mark.proves("D.315", "D.317", "D.320")
@pytest.mark.parametrize("count", [MAX_GATES])
async def test_very_many_gates_come_in_at_both_doors_and_one_fault_among_them_is_found(
    http: httpx.AsyncClient, world: World, folder: Path, count: int
) -> None:
    (folder / "large.json").write_text(large(count))
    done = CliRunner().invoke(app, ["atlas", "validate", "large.json"])
    assert done.exit_code == 0, done.stderr
    assert f": {count} gates" in done.stdout
    answer = await http.post("/v1/atlases", json={"manifest": large(count)}, headers=world.admin.headers)
    assert (answer.status_code, answer.json().get("created")) == (201, True), answer.text[:1000]
    (folder / "wrong.json").write_text(large(count, "questionz"))
    wrong = CliRunner().invoke(app, ["atlas", "validate", "wrong.json"])
    assert wrong.exit_code == 2
    assert "`questionz` is not a key of a checkpoint; did you mean `questions`?" in " ".join(wrong.stderr.split())


@pytest.mark.proves("D.352", "D.320", "D.381")
async def test_an_expression_that_would_take_for_ever_elsewhere_is_published_and_answered(
    http: httpx.AsyncClient, world: World, folder: Path
) -> None:
    """A backtracking engine needs 2**4_999 steps: that this ends is the proof."""
    evil = "^(a+)+$"
    validation = {"pattern": evil, "max_length": MAX_MATCHED}
    asks = gate("typed", {"type": "session_start"}, questions=[question("q", "text", validation=validation)])
    trigger = {"type": "keyword", "match_mode": "regex", "patterns": ["(a+)+$", "(x+x+)+y"]}
    hears = gate("heard", trigger, "advisory", guidance={"content": "Heard."})
    made = desk(gates=[asks, hears])
    (folder / "evil.json").write_text(made)
    assert CliRunner().invoke(app, ["atlas", "validate", "evil.json"]).exit_code == 0
    await governed(world, made)
    session = await opened(http, world.service)
    path = f"/sessions/{session}/answers"
    wrong = await sent(http, world.service, path, gate="typed", answers={"q": "a" * (MAX_MATCHED - 1) + "!"})
    assert (wrong["passed"], evil in str(wrong["faults"])) == (False, True)
    long = await sent(http, world.service, path, gate="typed", answers={"q": "a" * 100_000})
    assert (long["passed"], "at most" in str(long["faults"])) == (False, True)
    right = await sent(http, world.service, path, gate="typed", answers={"q": "a" * MAX_MATCHED})
    assert right["passed"]
    goal = {"goal": "x" * 1_000 + "a" * 900 + "!"}
    heard = await sent(http, world.service, f"/sessions/{session}/resolve", 201, **goal)
    assert "Heard." not in str(heard["contexts"])


@pytest.mark.proves("D.381", "D.351")
@pytest.mark.parametrize(
    ("kind", "more", "wrong"),
    [
        ("boolean", {}, [False, "true", 1, None]),
        ("acknowledgment", {}, ["not understood", "I have not understood.", "no", "", "understood?no", True]),
        ("text", {}, ["x" * 20_001, "", " \u200b ", "\u3164"]),
        ("text", {"max_length": 10}, ["x" * 11]),
        (
            "text",
            {"must_not_contain": ["bypass"]},
            ["to BYPASS it", "to ｂｙｐａｓｓ it", "to by\u200bpass it", "to byp\u0430ss it", "to b-y-p-a-s-s it"],
        ),
    ],
)  # fmt: skip
async def test_answers_that_do_not_agree_are_refused_over_the_api(
    http: httpx.AsyncClient, world: World, kind: str, more: dict[str, Any], wrong: list[Any]
) -> None:
    rules = {"validation": more} if more else {}
    asks = gate("typed", {"type": "session_start"}, max_attempts=20, questions=[question("q", kind, **rules)])
    await governed(world, desk(gates=[asks]))
    session = await opened(http, world.service)
    for value in wrong:
        told = await sent(http, world.service, f"/sessions/{session}/answers", gate="typed", answers={"q": value})
        assert (told["passed"], list(told["faults"])) == (False, ["q"]), value
    closed = await sent(http, world.service, f"/sessions/{session}/calls", 409, tool="ticket.list")
    assert closed["questions"][0]["attempts_left"] == 20 - len(wrong)


@pytest.mark.proves("D.318")
async def test_the_schema_is_published_for_everybody(http: httpx.AsyncClient) -> None:
    answer = await http.get("/schemas/atlas/v1.json")
    assert answer.status_code == 200, "without a key"
    assert answer.json() == schema()
    assert answer.json()["$id"].endswith("/schemas/atlas/v1.json")


@pytest.mark.proves("D.318")
def test_the_schema_is_printed() -> None:
    done = CliRunner().invoke(app, ["atlas", "schema"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == schema()


@pytest.mark.proves("S5.240")
def test_keys_of_policy_files_are_shown_as_the_lines_of_one(folder: Path) -> None:
    (folder / "mixed.yaml").write_text(
        HEAD
        + """policies:
  - policy_id: big-refunds
    type: requires_approval
    actions: [refund.pay, "refund.*"]
    when: args.amount > 500
    quorum: {votes: 2, roles: {admin: 1}}
    approvers: {roles: [approver], members: ["Ada"]}
checkpoints:
  - {checkpoint_id: stop, trigger: {type: session_start}, mode: observational, when: 'args.a == "b"'}
"""
    )
    done = CliRunner().invoke(app, ["atlas", "validate", "mixed.yaml"])
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    where = "it belongs in a policy file (`cortex policy apply`, docs/guides/policies.md):"
    assert lines[0] == f"mixed.yaml:10: `when` is not a key of a policy of the type requires_approval; {where}"
    at = [number for number, line in enumerate(lines) if line.startswith("mixed.yaml")]
    assert [lines[number].split(":")[1] for number in at] == ["10", "11", "12", "14"]
    assert (
        "it belongs in a policy file (`cortex policy apply`, docs/guides/policies.md), as `when` does." in lines[at[1]]
    )
    first, second = policy_files.read("\n".join(lines[1 : at[1]])).rows
    assert (first.row.name, first.row.target, second.row.target) == ("big-refunds", "refund.pay", "refund.*")
    assert (first.row.effect, first.members, first.row.quorum and first.row.quorum.votes) == (
        "requires_approval",
        ("Ada",),
        2,
    )
    assert first.row.condition is not None
    (third,) = policy_files.read("\n".join(lines[at[3] + 1 : at[3] + 6]).partition("Correct")[0]).rows
    assert (third.row.name, third.row.target) == ("stop", "the.tool")


@pytest.mark.proves("S5.241")
@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\u2066", "\ufeff", "\u00ad", "a\u200db", "\u3164"])
@pytest.mark.parametrize("key", ["name", "question", "hint", "option"])
def test_characters_that_nobody_sees_are_refused_in_names_and_questions(folder: Path, key: str, hidden: str) -> None:
    texts = {"name": "Desk", "question": "Sure?", "hint": "Think.", "option": "no", key: f"Say yes{hidden}no"}
    document = {
        "atlas_version": "1.0", "atlas_id": "a.b", "version": "1", "name": "A", "steward": {"id": "s", "name": "S"},
        "checkpoints": [{
            "checkpoint_id": "g", "name": texts["name"], "mode": "blocking", "trigger": {"type": "session_start"},
            "questions": [{
                "question_id": "q", "question": texts["question"], "hint": texts["hint"], "response_type": "choice",
                "options": ["yes", texts["option"]],
            }],
        }],
    }  # fmt: skip
    (folder / "hidden.json").write_text(json.dumps(document))
    done = CliRunner().invoke(app, ["atlas", "validate", "hidden.json"])
    assert done.exit_code == 2
    point = ord(hidden.strip("ab"))
    assert f"has a character that nobody sees (U+{point:04X}) at position" in done.stderr
    # What scripts and emoji need is fine.
    texts[key] = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u26a0\ufe0f \U0001f468\u200d\U0001f469"
    (folder / "fine.json").write_text(
        json.dumps(document).replace(json.dumps(f"Say yes{hidden}no"), json.dumps(texts[key]))
    )
    assert CliRunner().invoke(app, ["atlas", "validate", "fine.json"]).exit_code == 0


@pytest.mark.proves("S5.241")
def test_characters_that_nobody_sees_are_refused_in_targets_of_policies() -> None:
    with pytest.raises(InvalidInput, match=r"nobody sees \(U\+202E\)"):
        policy_files.read('policies: [{name: a, target: "pay\u202e*", effect: allow}]')
