"""Policies over HTTP, and through the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cortex_plane import Client
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import InvalidInput, Stale
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.policies.model.versions import ExplainRequest, PolicyFile, SimulationRequest
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World
from tests.fixtures.stages import staging
from tests.fixtures.workers import call, make_agent, submit, turn, until, working

FILE = """\
policies:
  - name: production
    target: deploy*
    when: args.environment == "production"
    effect: requires_approval
    template: dev_review
    approvers: {roles: [admin]}
    timeout: 2h
"""


async def post(
    http: httpx.AsyncClient, world: World, path: str, body: dict[str, Any], **headers: str
) -> httpx.Response:
    return await http.post(f"/v1/policies{path}", json=body, headers=world.admin.headers | headers)


@pytest.mark.proves("D.56")
async def test_a_file_is_applied_shown_and_listed(http: httpx.AsyncClient, world: World) -> None:
    dry = await post(http, world, "", {"text": FILE, "dry_run": True})
    assert (dry.status_code, dry.json()["version"], dry.json()["dry_run"]) == (200, 2, True)
    applied = await post(http, world, "", {"text": FILE, "note": "first", "expected_version": 1})
    assert applied.status_code == 200
    assert applied.json()["diff"] == {
        "added": 1, "removed": 1, "changed": 0,
        "changes": [
            {"change": "added", "level": "org", "team": None, "name": "production", "fields": []},
            {"change": "removed", "level": "org", "team": None, "name": "everything-goes", "fields": []},
        ],
    }  # fmt: skip
    shown = (await http.get("/v1/policies", headers=world.admin.headers)).json()
    assert (shown["version"], shown["source"], shown["total"]) == (2, FILE, 1)
    assert shown["rows"][0]["row"]["approvers"] == {"owner": False, "roles": ["admin"], "members": []}
    listed = (await http.get("/v1/policies/versions?limit=1", headers=world.admin.headers)).json()
    assert [one["version"] for one in listed["items"]] == [2]
    rest = await http.get(f"/v1/policies/versions?limit=1&cursor={listed['next_cursor']}", headers=world.admin.headers)
    assert [one["version"] for one in rest.json()["items"]] == [1]
    assert rest.json()["next_cursor"] is None
    first = (await http.get("/v1/policies/versions/1", headers=world.admin.headers)).json()
    assert [one["row"]["name"] for one in first["rows"]] == ["everything-goes"]
    missing = await http.get("/v1/policies/versions/9", headers=world.admin.headers)
    assert (missing.status_code, missing.json()["code"]) == (404, "policy_version_not_found")


@pytest.mark.proves("D.56")
async def test_what_is_wrong_is_a_problem_with_its_line(http: httpx.AsyncClient, world: World) -> None:
    wrong = await post(http, world, "", {"text": FILE + "    quorum: 11\n    finl: true\n"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_policy_file")
    assert wrong.json()["detail"].splitlines()[0].startswith("line 9: `quorum` must be a whole number from 1")
    assert wrong.json()["detail"].splitlines()[1].startswith("line 10: `finl` is not a key")
    stale = await post(http, world, "", {"text": FILE, "expected_version": 7})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale")
    assert (await http.get("/v1/policies", headers=world.admin.headers)).json()["version"] == 1
    bob = await world.person(Role.OPERATOR, name="Bob")
    assert (await http.post("/v1/policies", json={"text": FILE}, headers=bob.headers)).status_code == 403
    assert (await http.get("/v1/policies", headers=bob.headers)).status_code == 200


async def test_a_repeated_request_has_one_effect(http: httpx.AsyncClient, world: World) -> None:
    first = await post(http, world, "", {"text": FILE}, **{"Idempotency-Key": "k"})
    again = await post(http, world, "", {"text": FILE}, **{"Idempotency-Key": "k"})
    assert first.json() == again.json()
    assert first.json()["changed"]


async def test_a_large_file_is_taken_and_one_that_is_too_large_is_not(http: httpx.AsyncClient, world: World) -> None:
    rows = "".join(f"  - {{name: r{n}, target: tool_{n}, effect: deny}}\n" for n in range(5000))
    padding = "# " + "x" * 1_500_000 + "\n"
    applied = await post(http, world, "", {"text": "policies:\n" + rows + padding})
    assert (applied.status_code, applied.json()["rows"]) == (200, 5000)
    assert len(applied.json()["diff"]["changes"]) == 200
    shown = (await http.get("/v1/policies", headers=world.admin.headers)).json()
    assert (shown["total"], len(shown["rows"])) == (5000, 1000)
    huge = await post(http, world, "", {"text": "x" * 5_000_000})
    assert huge.status_code == 422
    enormous = await post(http, world, "", {"text": "x" * 9_000_000})
    assert (enormous.status_code, enormous.json()["code"]) == (413, "too_large")


@pytest.mark.proves("D.12")
async def test_nothing_large_is_read_for_somebody_who_may_not_apply_it(http: httpx.AsyncClient, world: World) -> None:
    bob = await world.person(Role.OPERATOR, name="Bob")
    taken = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        yield b'{"text": "'
        for _ in range(64):
            taken += 65536
            yield b"x" * 65536
        yield b'"}'

    async def send(headers: dict[str, str]) -> tuple[int, str, int]:
        nonlocal taken
        taken = 0
        sent = {"Content-Type": "application/json", **headers}
        answer = await http.post("/v1/policies", content=pieces(), headers=sent)
        return answer.status_code, answer.json()["code"], taken

    assert await send({}) == (401, "key_missing", 0)
    assert await send({"Authorization": "Bearer cortex_key_" + "a" * 43}) == (401, "key_unknown", 0)
    assert await send(bob.headers) == (403, "forbidden", 0)
    # Whoever is not asked who they are gets no further than anywhere else.
    *refused, read = await send(world.admin.headers | {"Cortex-Org": "No Slug"})
    assert refused == [413, "too_large"]
    assert read <= MAX_BODY_BYTES + 65536
    declared = {**world.admin.headers, "Content-Length": str(40_000_000)}
    early = await http.post("/v1/policies", content=b"{}", headers=declared)
    assert (early.status_code, early.json()["code"]) == (413, "too_large")
    assert (await send(world.admin.headers))[0] == 422  # read whole, and then it is no file


@pytest.mark.proves("D.54")
async def test_explain_says_what_would_happen_and_why(http: httpx.AsyncClient, world: World) -> None:
    await post(http, world, "", {"text": FILE})
    asked: dict[str, Any] = {"agent": "deployer", "tool": "deploy.web", "arguments": {"environment": "production"}}
    told = (await post(http, world, "/explain", asked)).json()["explanation"]
    assert told["decision"]["verdict"] == "requires_approval"
    assert told["decision"]["rule"] == "org:production@2.1"
    assert told["decision"]["terms"]["timeout_seconds"] == 7200
    assert told["origins"]["reminder_seconds"] == "template dev_review of row production"
    asked["policies"] = [{"name": "never", "target": "*", "effect": "deny"}]
    assert (await post(http, world, "/explain", asked)).json()["explanation"]["decision"]["verdict"] == "deny"
    asked["policies"] = [{"name": "always", "target": "*", "effect": "allow"}]
    refused = await post(http, world, "/explain", asked)
    assert refused.status_code == 422
    assert "only tightens" in refused.json()["errors"][0]["message"]


@pytest.mark.proves("D.59")
async def test_a_job_brings_policies_of_its_own(http: httpx.AsyncClient, world: World) -> None:
    draft: dict[str, Any] = {
        "agent": "deployer", "policies": [{"name": "mine", "target": "pay*", "effect": "deny", "when": "args.amount > 9"}],
    }  # fmt: skip
    made = await http.post("/v1/jobs", json=draft, headers=world.admin.headers)
    assert made.status_code == 201
    assert made.json()["policies"][0]["condition"] == "args.amount > 9"
    draft["policies"][0]["when"] = "amount > 9"
    refused = await http.post("/v1/jobs", json=draft, headers=world.admin.headers)
    assert refused.status_code == 422
    assert "names amount" in refused.json()["errors"][0]["message"]
    draft["policies"] = [{"name": f"r{n}", "target": "*", "effect": "deny"} for n in range(21)]
    assert (await http.post("/v1/jobs", json=draft, headers=world.admin.headers)).status_code == 422


@pytest.mark.proves("D.115")
async def test_a_simulation_says_what_a_file_would_change(http: httpx.AsyncClient, world: World) -> None:
    app = staging("tests")
    agent = await make_agent(world, [turn(call("ship", version="1"), call("ship", version="2"))], slug="shipper")
    id = await submit(world, agent)
    async with working(world.db, app):
        await until(world, id, JobStatus.COMPLETED)
    text = "policies: [{name: no, target: ship, effect: deny}]"
    told = await post(http, world, "/simulate", {"text": text})
    assert told.status_code == 200
    found = told.json()
    assert (found["totals"]["looked_at"], found["totals"]["stricter"], found["version"]) == (2, 2, "1.1")
    (group,) = found["groups"]
    assert (group["tool"], group["agent"], group["calls"], group["direction"]) == ("ship", "shipper", 2, "stricter")
    assert group["before"] == {"verdict": "allow", "rule": "org:everything-goes"}
    assert group["after"] == {"verdict": "deny", "rule": "org:no"}
    assert group["recorded"] == [{"verdict": "allow", "rule": "org:everything-goes", "calls": 2}]
    assert len(group["examples"]) == 2
    wrong = await post(http, world, "/simulate", {"text": "policies:\n  - {name: a, target: b}\n"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_policy_file")
    assert wrong.json()["detail"] == "line 2: this policy has no `effect`."
    for body in (
        {"text": text, "since": "yesterday"}, {"text": text, "since": "2026-01-01T00:00:00"}, {"text": text, "limit": 0},
        {"text": text, "since": "2026-01-01T00:00:00Z", "within_seconds": 5}, {"since": "2026-01-01T00:00:00Z"},
        {"text": text, "since": "2999-01-01T00:00:00Z"},
    ):  # fmt: skip
        refused = await post(http, world, "/simulate", body)
        assert refused.status_code == 422, body
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        simulated = await plane.policies.simulate(SimulationRequest(text=text, limit=1))
        assert (simulated.totals.looked_at, simulated.stopped) == (1, True)
        assert simulated.groups[0].after.verdict is PolicyVerdict.DENY


@pytest.mark.proves("D.12")
async def test_a_large_file_is_simulated_for_those_who_may_and_read_for_nobody_else(
    http: httpx.AsyncClient, world: World
) -> None:
    large = {"text": "policies: []\n# " + "x" * (MAX_BODY_BYTES + 1000)}
    assert (await post(http, world, "/simulate", large)).status_code == 200
    bob = await world.person(Role.OPERATOR, name="Bob")
    refused = await http.post("/v1/policies/simulate", json=large, headers=bob.headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_the_client_speaks_of_policies(http: httpx.AsyncClient, world: World) -> None:
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        applied = await plane.policies.apply(PolicyFile(text=FILE))
        assert applied.version == 2
        assert (await plane.policies.get()).source == FILE
        assert (await plane.policies.get(1)).version == 1
        assert [one.version async for one in plane.policies.versions()] == [2, 1]
        asked = ExplainRequest(agent="deployer", tool="deploy", arguments={"environment": "production"})
        told = await plane.policies.explain(asked)
        assert told.explanation.decision.verdict is PolicyVerdict.REQUIRES_APPROVAL
        with pytest.raises(InvalidInput, match="line 1"):
            await plane.policies.apply(PolicyFile(text="a: b"))
        with pytest.raises(Stale):
            await plane.policies.apply(PolicyFile(text=FILE, expected_version=1))
