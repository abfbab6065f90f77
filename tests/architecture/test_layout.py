"""The rules about names and words that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cortex_plane
from tests.architecture.names import defined_names, is_participle

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "cortex_plane"
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "core", "misc"}

# Spec 5 calls a gate "checkpoint" and has words of its own. They are translated in gates/files alone.
SPEC_5_WORDS = re.compile(
    r"checkpoint_(?:id|type|config)|CheckpointTriggered|CheckpointResponse|CheckpointPassed|CheckpointBlocked"
    r"|StewardCheckpoint|\bCARP\b|capability_gate|keyword_match|context_blocks|inject_contexts"
)
# The spec-1 checkpoint of a job has an id of its own; nothing else may use these words.
ALLOWED_IN = (
    "gates/files/", "sessions/model/events.py", "gates/model/gates.py", "jobs/model/checkpoint", "jobs/rules/recovery",
    "worker/lease.py", "db/functions/checkpoints.sql",
)  # fmt: skip


@pytest.mark.proves("D.23")
def test_the_public_names_are_these() -> None:
    assert sorted(cortex_plane.__all__) == [
        "AgentDraft", "App", "ApprovalPending", "AtlasBuilder", "Client", "ConnectionDraft", "Context", "ContextMisused", "CortexError",
        "Decision", "Denied", "DidNotHappen", "GateClosed", "Happened", "InboundMessage", "JobDraft", "KeyDraft", "ModelConfig",
        "Role", "Secret", "StepFailed", "ToolContext", "ToolDenied", "ToolError", "ToolFailed", "UncertainOutcome", "WaitTimeout",
        "__version__",
    ]  # fmt: skip
    for name in cortex_plane.__all__:
        assert getattr(cortex_plane, name) is not None


@pytest.mark.proves("D.23")
def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {path: path.stem for path in [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]}
    names |= {path: path.name for path in SOURCE.rglob("*") if path.is_dir()}
    assert [str(path) for path, name in names.items() if name in BANNED_NAMES] == []


def test_few_variables_are_participles() -> None:
    variables, _ = defined_names()
    participles = {name: count for name, count in variables.items() if is_participle(name)}
    assert sum(participles.values()) < variables.total() / 100, "name what a variable holds, not how it came"


def test_no_two_public_classes_have_one_name() -> None:
    _, classes = defined_names()
    assert [name for name, count in classes.items() if count > 1] == []


@pytest.mark.parametrize(
    "name", ["told", "_given", "rows_changed", "was_sent", "is_found", "approved", "feed", "decision"]
)
def test_the_rule_about_participles_knows_them(name: str) -> None:
    assert is_participle(name) is (name in ("told", "_given", "rows_changed"))


def test_the_words_of_spec_5_stay_in_the_reader_of_files() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {match.group()}"
        for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]
        if not path.relative_to(SOURCE).as_posix().startswith(ALLOWED_IN)
        for match in SPEC_5_WORDS.finditer(path.read_text())
    ]
    assert found == []


def test_the_rule_about_spec_5_would_find_them() -> None:
    assert SPEC_5_WORDS.search('gate["checkpoint_type"]')
    assert not SPEC_5_WORDS.search("checkpoint_granularity and job.checkpoint")


def test_no_sql_statement_is_built_in_python() -> None:
    statement = re.compile(r"""f["']{1,3}\s*(select|insert into|update|delete from|with) """, re.IGNORECASE)
    found = [
        f"{path.relative_to(SOURCE)}: {match.group()}"
        for path in SOURCE.rglob("*.py")
        for match in statement.finditer(path.read_text())
    ]
    # The one exception: a call of a function, whose name is a constant of ours.
    assert found == ['db/database.py: f"select ']
