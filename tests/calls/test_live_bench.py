"""Scenarios under the policies, tools and agents of an org: over HTTP and with the client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.calls.verbs import permissions
from cortex_plane.client import Client
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.model.scenarios import ScenarioReport, ScenarioRun
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.fields import Risk
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.atlases import govern, plain, publish
from tests.fixtures.people import World, apply_policies
from tests.fixtures.tool_confirmations import DIGEST, offered
from tests.fixtures.tool_confirmations import publish as publish_tools

POLICIES = """\
policies:
  - {name: small, target: pay, when: args.amount <= 50, effect: allow}
  - {name: large, target: pay, effect: requires_approval, quorum: 2}
teams:
  main: [{name: no-drops, target: drop, effect: deny}]
"""
ATLAS = plain("com.acme.pay", "1", policies=[{"policy_id": "all", "type": "allow", "actions": ["*"]}])
AMOUNTS = """\
agent: deployer
scenarios:
  - {name: small, call: pay, arguments: {amount: 40}, expect: {decision: allow, rule: org:small}}
  - {name: large, call: pay, arguments: {amount: 600}, expect: {decision: requires_approval, votes: 2}}
  - {name: drop, call: drop, expect: {decision: deny, rule: team:no-drops}}
"""


async def tools(world: World, **risks: Risk | None) -> None:
    """What the agent's app has published."""
    digests = (f"{at:02x}" * 32 for at in range(100))
    versions = [
        offered(name, digest, app="plane", server=None, remote_name=None, implementation=None, hints=None,
                risk=risk or Risk.MEDIUM, declares_risk=risk is not None)
        for (name, risk), digest in zip(risks.items(), digests, strict=False)
    ]  # fmt: skip
    await publish_tools(world.db, *versions)


@pytest.mark.proves("S5.263")
async def test_scenarios_run_under_what_the_org_has(http: httpx.AsyncClient, strict: World) -> None:
    await strict.person(Role.APPROVER)
    await apply_policies(strict.db, strict.admin.actor, POLICIES)
    await tools(strict, pay=Risk.LOW, drop=Risk.LOW)
    async with Client("http://plane", strict.admin.secret, transport=http._transport) as plane:
        report = await plane.atlases.test(ScenarioRun(scenarios=AMOUNTS))
    assert report.policies == "1.1"
    assert [(one.name, one.passed, one.faults) for one in report.outcomes] == [
        ("small", True, []), ("large", True, []), ("drop", True, []),
    ]  # fmt: skip
    assert report.outcomes[0].found["reason"] == ""


async def run(world: World, text: str, *atlases: str, **more: Any) -> ScenarioReport:
    files = [AtlasFile(manifest=one) for one in atlases]
    return await permissions.play_scenarios(
        world.db, world.admin.actor, ScenarioRun(scenarios=text, atlases=files, **more)
    )


async def found(world: World, call: str, *atlases: str, more: str = "") -> tuple[str, str]:
    """Decision and rule of one call."""
    text = f"agent: deployer\nscenarios: [{{name: It, call: {call}, expect: {{shut: []}}{more}}}]"
    (outcome,) = (await run(world, text, *atlases)).outcomes
    return outcome.found["decision"], outcome.found["rule"]


@pytest.mark.proves("S5.263")
async def test_the_atlases_are_those_of_the_agent_or_those_of_the_run(strict: World) -> None:
    await tools(strict, pay=Risk.LOW)
    assert await found(strict, "pay") == ("requires_approval", "default:owner")
    await publish(strict, ATLAS)
    await govern(strict, "com.acme.pay")
    assert await found(strict, "pay") == ("allow", "atlas:com.acme.pay/all")
    denying = plain("com.acme.pay", "2", policies=[{"policy_id": "no", "type": "deny", "actions": ["pay"]}])
    assert await found(strict, "pay", denying) == ("deny", "atlas:com.acme.pay/no")


@pytest.mark.proves("S5.263")
async def test_the_tools_are_those_of_the_agent(strict: World) -> None:
    await publish(strict, ATLAS)
    await govern(strict, "com.acme.pay")
    await tools(strict, safe=Risk.LOW, risky=Risk.HIGH, silent=None)
    assert await found(strict, "safe") == ("allow", "atlas:com.acme.pay/all")
    assert await found(strict, "risky") == ("requires_approval", "default:owner")
    assert await found(strict, "silent") == ("requires_approval", "default:owner")
    # What the file says of tools does not count, and a call is never less risky than its tool.
    assert await found(strict, "risky", more=", tools: {risky: {read_only: true}}, risk: low") == (
        "requires_approval", "default:owner",
    )  # fmt: skip
    assert await found(strict, "unknown") == ("deny", "not one of its agent's tools")
    skills = {"atlases": ["com.acme.pay"], "tools": ["risky"]}
    await agents.update_agent(strict.db, strict.admin.actor, "deployer", AgentChange(skill_config=skills), None)
    assert await found(strict, "safe") == ("deny", "not one of its agent's tools")


@pytest.mark.proves("S5.263")
async def test_what_a_server_says_of_its_tools_counts_once_it_is_confirmed(strict: World) -> None:
    await publish_tools(strict.db, offered(app="plane", read_only=True))
    assert await found(strict, "files.read_query") == ("requires_approval", "default:owner")
    draft = ConfirmationDraft(tool="files.read_query", digest=DIGEST, read_only=True)
    await agents.confirm_tool(strict.db, strict.admin.actor, draft)
    assert await found(strict, "files.read_query") == ("allow", "default:read_only")


@pytest.mark.proves("S5.263")
async def test_what_cannot_be_played_is_refused_with_its_line(strict: World) -> None:
    nobody = "scenarios:\n  - {name: It, expect: {open: []}}"
    with pytest.raises(InvalidInput, match=r"my\.yaml:2: this scenario names no `agent`"):
        await run(strict, nobody, name="my.yaml")
    with pytest.raises(NotFound):
        await run(strict, f"agent: nobody\n{nobody}")
    with pytest.raises(InvalidInput, match="atlas"):
        await run(strict, f"agent: deployer\n{nobody}", "a: b")
    many = "".join("{said: a}, " for _ in range(1000))
    with pytest.raises(InvalidInput, match="a plane plays 2000 at once"):
        await run(
            strict, "agent: deployer\nscenarios:\n" + f"- {{name: a, session: [{many}], expect: {{open: []}}}}\n" * 2
        )
    await publish(strict, ATLAS)
    await govern(strict, "com.acme.pay")
    async with strict.db.transaction(strict.org_id) as tx:
        await tx.rows("update atlas_version set retired_at = plane_now(), retired_by = 'Ada'")
    with pytest.raises(Conflict, match=r"com\.acme\.pay"):
        await run(strict, f"agent: deployer\n{nobody}")
    member = await strict.person(Role.MEMBER)
    with pytest.raises(Forbidden):
        await permissions.play_scenarios(strict.db, member.actor, ScenarioRun(scenarios=AMOUNTS))
