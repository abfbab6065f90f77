"""Keys, scopes and replays of code agents, without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.jobs.model.journal import EntryKind, EntryStatus, JournalEntry, check_name, digest, scope_of
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.errors import ContextMisused, StepFailed, ToolDenied
from cortex_plane.worker.calls import merge_writes
from cortex_plane.worker.code import operations
from cortex_plane.worker.code.context import Context, decode_result, describe_error, dry_run, restore_error
from cortex_plane.worker.code.operations import Mismatch, Scope, last_round

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def entry(
    key: str, position: int = 0, kind: EntryKind = EntryKind.STEP, result: Any = None, **more: Any
) -> JournalEntry:
    name = key.rpartition("/")[2].partition("#")[0]
    given: dict[str, Any] = {"input_hash": digest(b"[]"), "status": EntryStatus.DONE, **more}
    return JournalEntry(key=key, position=position, kind=kind, name=name, result=result, created_at=NOW, **given)


@pytest.mark.proves("D.241")
def test_a_key_is_the_branch_the_name_and_its_occurrence() -> None:
    scope = Scope("gather#0/1/")
    keys = [scope.visit(EntryKind.STEP, name, digest(b"[]"))[0] for name in ("check", "look", "check")]
    assert keys == ["gather#0/1/check#0", "gather#0/1/look#0", "gather#0/1/check#1"]
    assert {scope_of(key) for key in keys} == {"gather#0/1/"}
    assert scope_of("plan#0") == ""


@pytest.mark.proves("D.248")
def test_recorded_operations_come_again_in_their_order() -> None:
    recorded = [entry("a#0"), entry("b#0", 1), entry("a#1", 2)]
    scope = Scope("", recorded)
    for expected in recorded:
        assert scope.unvisited is expected
        assert scope.visit(EntryKind.STEP, expected.name, expected.input_hash) == (expected.key, expected)
    assert scope.unvisited is None
    assert scope.visit(EntryKind.STEP, "c", digest(b"[]")) == ("c#0", None)


@pytest.mark.parametrize(
    ("kind", "name", "given"),
    [(EntryKind.TOOL, "a", b"[]"), (EntryKind.STEP, "b", b"[]"), (EntryKind.STEP, "a", b"[1]")],
)
def test_anything_else_is_a_mismatch_and_changes_nothing(kind: EntryKind, name: str, given: bytes) -> None:
    scope = Scope("", [entry("a#0")])
    for _ in range(2):
        with pytest.raises(Mismatch):
            scope.visit(kind, name, digest(given))
    assert scope.visit(EntryKind.STEP, "a", digest(b"[]"))[0] == "a#0"


@given(st.text(max_size=300))
def test_a_name_that_passes_can_be_part_of_a_key(name: str) -> None:
    try:
        check_name(name, "a step")
    except ContextMisused:
        return
    assert 1 <= len(name) <= 200
    assert not {"/", "#", "\x00"} & set(name)
    assert name.encode()


def test_the_last_round_of_a_conversation_is_found() -> None:
    assert last_round([entry("turn#1"), entry("turn#1/0/a#0", 1)]) == 0
    assert last_round([entry("/1"), entry("/1/a#0", 1), entry("/12", 2), entry("/2", 3)]) == 12


@pytest.mark.parametrize(
    "error",
    [StepFailed("It broke."), ToolDenied("No.", hint="Go."), ModelError("Busy.", status=529, code="overloaded")],
)
def test_a_recorded_failure_is_raised_as_it_was(error: Any) -> None:
    again = restore_error(describe_error(error))
    assert (type(again), again.message, again.code, again.hint) == (type(error), error.message, error.code, error.hint)
    assert getattr(again, "status", None) == getattr(error, "status", None)


def test_recorded_values_have_their_types_again() -> None:
    id = UUID(int=7)
    assert decode_result(EntryKind.VALUE, "now", NOW.isoformat(), "now#0") == NOW
    assert decode_result(EntryKind.VALUE, "uuid", str(id), "uuid#0") == id
    assert decode_result(EntryKind.VALUE, "random", 0.5, "random#0") == 0.5
    assert not decode_result(EntryKind.APPROVAL, "approval", {"approved": False, "reason": "no"}, "approval#0")


async def _planned(ctx: Context) -> str:
    plan = await ctx.step("plan", lambda: "never called", repeatable=True)
    checks = await ctx.gather(
        ctx.step("left", lambda: 1, repeatable=True), ctx.step("right", lambda: 2, repeatable=True)
    )
    if plan == "careful":
        await ctx.sleep(60)
    return f"{plan} {checks}"


def _recorded(plan: str) -> list[JournalEntry]:
    return [
        entry("plan#0", 0, result=plan),
        entry("gather#0", 1, EntryKind.GATHER, input_hash=operations.plan_gather(2).input_hash),
        entry("gather#0/0/left#0", 2, result=1),
        entry("gather#0/1/right#0", 3, result=2),
    ]


@pytest.mark.proves("D.254")
async def test_a_dry_run_performs_nothing_and_tells_the_difference() -> None:
    done: list[str] = []

    def _noted(word: str) -> str:
        done.append(word)
        return word

    async def careless(ctx: Context) -> str:
        plan = await ctx.step("plan", _noted, "ran", repeatable=True)
        return str(plan)

    assert await dry_run(_planned, _recorded("careful"), {}) is None
    assert await dry_run(_planned, _recorded("bold"), {}) is None
    assert await dry_run(_planned, [], {}) is None
    assert await dry_run(_planned, _recorded("bold")[:2], {}) is None
    assert "another input came" in (await dry_run(careless, _recorded("bold"), {}) or "")
    slept = entry("sleep#0", 4, EntryKind.SLEEP, input_hash=operations.plan_sleep(60, None).input_hash)
    assert await dry_run(_planned, [*_recorded("careful"), slept], {}) is None
    assert await dry_run(_planned, [*_recorded("bold"), slept], {}) == (
        "expected sleep `sleep#0`, and the function returned"
    )
    assert done == []


@pytest.mark.proves("D.254")
async def test_a_dry_run_of_code_that_hangs_or_raises_ends() -> None:
    async def hangs(ctx: Context) -> None:
        import asyncio

        await asyncio.Event().wait()

    async def raises(ctx: Context) -> None:
        raise KeyError("ref")

    assert "did not come to an operation" in (await dry_run(hangs, _recorded("bold"), {}, seconds=0.05) or "")
    assert "raised KeyError: 'ref'" in (await dry_run(raises, _recorded("bold"), {}) or "")
    assert await dry_run(raises, [], {}) is None


async def test_a_dry_run_reads_large_results() -> None:
    large = UUID(int=9)
    seen: list[Any] = []

    async def run(ctx: Context) -> None:
        seen.append(await ctx.step("big", lambda: "", repeatable=True))

    async def fetch(id: UUID) -> bytes | None:
        return b'"whole"' if id == large else None

    recorded = [entry("big#0", 0, result={"stored_result": str(large)}, result_id=large)]
    assert await dry_run(run, recorded, {}, fetch=fetch) is None
    assert seen == ["whole"]


def test_two_writes_become_one() -> None:
    one = StepWrite(
        calls=b'[{"id":"a","arguments":1,"result":1}]', arguments=("1",), results=('"x"',), done_step=3,
        more={"journal": [1]},
    )  # fmt: skip
    two = StepWrite(
        calls=b'[{"id":"b","arguments":1,"result":null}]', outcomes=b'[{"id":"c","result":1}]', arguments=("2",),
        results=('"y"',), more={"journal": [2], "waits": [3]}, error="e",
    )  # fmt: skip
    both = merge_writes(one, two)
    assert both.calls == b'[{"id":"a","arguments":1,"result":1},{"id":"b","arguments":2,"result":null}]'
    assert both.outcomes == b'[{"id":"c","result":2}]'
    assert (both.arguments, both.results) == (("1", "2"), ('"x"', '"y"'))
    assert (both.done_step, both.more, both.error) == (3, {"journal": [1, 2], "waits": [3]}, "e")
