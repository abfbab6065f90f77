"""What callers send to be compiled: bounded in patterns and size, compiled in threads, and kept within so many bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from cortex_plane.kernel import canonical, conditions, schemas
from cortex_plane.kernel.documents import Bounds
from cortex_plane.kernel.schemas import MAX_PATTERN, MAX_PATTERNS, Unusable, check_strangers, compiled
from cortex_plane.kernel.shares import LruCache
from cortex_plane.policies import files as policy_files
from cortex_plane.policies.verbs import policies, policy_cache
from cortex_plane.policies.verbs.policy_cache import PolicyCache
from tests.calls.test_http_calls import asked, opened
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.people import World, apply_policies
from tests.gates.test_manifest_threads import Slow
from tests.http.test_http_bad_input import problem
from tests.http.test_shares import process


def with_patterns(*patterns: str) -> dict[str, Any]:
    fields = {f"f{n}": {"type": "string", "pattern": pattern} for n, pattern in enumerate(patterns)}
    return {"type": "object", "properties": fields}


@dataclass
class Compilations:
    on_the_loop: list[str] = field(default_factory=list)
    in_threads: list[str] = field(default_factory=list)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """What was compiled, and where."""
    loop = threading.current_thread()
    seen = Compilations()

    def watched(what: str, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def compile_it(text: Any) -> Any:
            here = threading.current_thread() is loop
            (seen.on_the_loop if here else seen.in_threads).append(f"{what}: {text!r}")
            return original(text)

        return compile_it

    monkeypatch.setattr(schemas, "_compiled", watched("schema", schemas._compiled))
    monkeypatch.setattr(schemas, "_validators", LruCache(max_size=schemas.KEPT_BYTES))
    conditions._compiled.cache_clear()
    inner = conditions._cel().compile
    monkeypatch.setattr(conditions._cel(), "compile", watched("condition", inner))
    return seen


@pytest.mark.proves("D.592")
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (with_patterns(*[rf"[\w\p{{L}}]{{{n}}}" for n in range(400, 440)]), "more than 20 patterns"),
        (with_patterns(r"[\w\p{L}\p{N}]{500}"), "takes more than 512 KiB"),
        (with_patterns(*[r"\p{L}{100}"] * MAX_PATTERNS), "takes more than 512 KiB"),
        (with_patterns("a" * (MAX_PATTERN + 1)), "more than 1000"),
        ({"patternProperties": {f"^a{n}$": {} for n in range(MAX_PATTERNS + 1)}}, "more than 20 patterns"),
        ({"allOf": [with_patterns("a", "b")] * 11}, "more than 20 patterns"),
    ],
    ids=["many", "large", "many large", "long", "of names", "spread"],
)
async def test_schema_with_costly_patterns_is_refused(
    http: httpx.AsyncClient, strict: World, compilations: Compilations, schema: dict[str, Any], reason: str
) -> None:
    session = await opened(http, strict.service)
    body = {"tool": "refunds.create", "arguments": {}, "parameters": schema}
    answer = await http.post(f"/v1/sessions/{session}/calls", json=body, headers=strict.service.headers)
    told = problem(answer, 422, "invalid_request")
    assert told["errors"][0]["field"] == "body.parameters"
    assert reason in told["errors"][0]["message"]
    assert compilations.on_the_loop == []


@pytest.mark.proves("D.592")
async def test_what_a_caller_sends_is_compiled_in_a_thread(
    http: httpx.AsyncClient, strict: World, compilations: Compilations
) -> None:
    rule = "policies: [{name: small, target: refunds.*, effect: deny, when: args.cents > 900}]"
    await apply_policies(strict.db, strict.admin.actor, rule)
    session = await opened(http, strict.service)
    usual = with_patterns(r"^[A-Z]-\d{1,10}$", r"^.{1,255}$")
    await asked(http, strict.service, session, parameters=usual)
    row = {"name": "own", "target": "refunds.*", "effect": "deny", "when": "args.cents == 12345"}
    job = await http.post("/v1/jobs", json={"agent": "deployer", "policies": [row]}, headers=strict.admin.headers)
    assert job.status_code == 201, job.text
    wrong = {**row, "when": "args.cents =="}
    job = await http.post("/v1/jobs", json={"agent": "deployer", "policies": [wrong]}, headers=strict.admin.headers)
    assert problem(job, 422)["errors"][0]["field"] == "body.policies.0.when"
    explained = {"agent": "deployer", "tool": "refunds.create", "policies": [{**row, "when": "args.cents == 54321"}]}
    answer = await http.post("/v1/policies/explain", json=explained, headers=strict.admin.headers)
    assert answer.status_code == 200, answer.text
    assert compilations.on_the_loop == []
    for text in ("f0", "args.cents > 900", "12345", "54321"):
        assert any(text in each for each in compilations.in_threads), text


@pytest.mark.proves("D.592")
async def test_edit_and_standing_condition_are_compiled_in_a_thread(
    http: httpx.AsyncClient, strict: World, compilations: Compilations
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    compilations.on_the_loop.clear()  # the worker of this test shares its thread
    body = {
        "decision": "approved", "version": approval.version, "input_hash": approval.input_hash,
        "arguments": {"version": "2.0"}, "standing": {"condition": "args.version == '2.0'", "calls": 2},
    }  # fmt: skip
    path = f"/v1/approvals/{approval.id}/decide"
    answer = await http.post(path, json=body, headers=strict.admin.headers)
    assert answer.status_code == 200, answer.text
    assert compilations.on_the_loop == []
    assert {each.partition(":")[0] for each in compilations.in_threads} == {"schema", "condition"}


@pytest.mark.proves("D.592")
async def test_policies_of_any_size_are_compiled_in_a_thread(strict: World, compilations: Compilations) -> None:
    rule = "policies: [{name: one, target: x, effect: deny, when: args.n == 77}]"
    await apply_policies(strict.db, strict.admin.actor, rule)
    version, _ = await policy_cache.book.current(strict.db, strict.org_id)
    conditions._compiled.cache_clear()
    compilations.on_the_loop.clear()
    await PolicyCache().at(strict.db, strict.org_id, version)
    assert compilations.on_the_loop == []


@pytest.mark.proves("D.592")
def test_compiled_schemas_are_kept_within_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = LruCache[bytes, Any](max_size=3 * 1024 * 1024)
    monkeypatch.setattr(schemas, "_validators", kept)
    made = []
    for n in range(12):
        schema = {**with_patterns("^a$", "^b$"), "title": str(n)}
        check_strangers(schema)
        made.append(schema)
        assert kept.size <= 3 * 1024 * 1024
    newest = compiled(made[-1])
    assert compiled(made[-1]) is newest, "the newest is here still"
    assert compiled(made[-1]).is_valid({"f0": "a"})
    with pytest.raises(Unusable):
        check_strangers(with_patterns("("))


# Files of policies ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.592")
async def test_files_of_policies_are_read_one_at_a_time_and_leave_threads_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(policies, "read", lambda text: slow(0) or policy_files.read(text))
    body = {"text": "policies: []", "dry_run": True}
    async with process(world.db) as (http, _):
        applying = [
            asyncio.create_task(http.post("/v1/policies", json=body, headers=world.admin.headers)) for _ in range(40)
        ]
        refused, _ = await asyncio.wait(applying, return_when=asyncio.FIRST_COMPLETED)
        problem(refused.pop().result(), 503, "policies_busy")
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "here"), 60) == "here"
        slow.go.set()
        assert {(await answer).status_code for answer in applying} == {200, 503}
    assert slow.most == 1


@pytest.mark.proves("D.592")
async def test_file_of_policies_with_too_many_values_is_not_read(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy_files.BOUNDS.nodes == 200_000
    monkeypatch.setattr(policy_files, "BOUNDS", Bounds(1000, nodes=6))
    answer = await http.post("/v1/policies", json={"text": "policies: [1, 2, 3, 4, 5]"}, headers=world.admin.headers)
    assert "more than 6 values" in problem(answer, 413, "too_large")["detail"]


async def test_api_document_is_rendered_once_however_many_strangers_ask(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(world.db) as (http, _):
        first = await http.get("/openapi.json")
        assert first.json()["openapi"] == "3.1.0"
        monkeypatch.setattr("cortex_plane.http.app.openapi_document", lambda: pytest.fail("rendered again"))
        assert (await http.get("/openapi.json")).content == first.content


@pytest.mark.proves("D.592")
async def test_values_of_a_large_body_are_looked_at_in_a_thread_and_too_many_not_at_all(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = threading.current_thread()
    looked_at: list[tuple[int, bool]] = []
    original = canonical._checked

    def checked(value: Any, name: str) -> Any:
        looked_at.append((len(orjson.dumps(value)), threading.current_thread() is loop))
        return original(value, name)

    monkeypatch.setattr(canonical, "_checked", checked)
    for values, on_the_loop in (([1] * 100, True), ([1] * 40_000, False)):
        body = {"agent": world.agent.slug, "payload": {"x": values}}
        made = await http.post("/v1/jobs", json=body, headers=world.admin.headers)
        assert made.status_code == 201, made.text
        assert looked_at[0][1] is on_the_loop
        looked_at.clear()
    for last in ("1", str(2**70), '"\\ud800"'):
        raw = f'{{"agent": "{world.agent.slug}", "payload": {{"x": [{"[]," * 300_000}{last}]}}}}'
        headers = {**world.admin.headers, "Content-Type": "application/json"}
        answer = await http.post("/v1/jobs", content=raw, headers=headers)
        assert "bytes; the limit is" in problem(answer, 422, "invalid_request")["errors"][0]["message"]
        assert all(size < 600_000 for size, _ in looked_at)
        looked_at.clear()
