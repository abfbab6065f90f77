"""Of a declared and a known risk the higher counts, wherever the call comes from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.kernel.fields import Risk
from tests.calls.test_http_calls import asked, opened, post
from tests.fixtures.atlases import govern, manifest
from tests.fixtures.atlases import publish as publish_atlas
from tests.fixtures.external_gates import gate, permissions, question
from tests.fixtures.people import World, apply_policies
from tests.fixtures.tool_confirmations import DIGEST, offered, publish

RULES = """\
policies:
  - {name: dangerous, target: "*", effect: deny, when: risk == "critical"}
  - {name: risky, target: "*", effect: requires_approval, when: risk == "high", template: dev_review}
  - {name: rest, target: "*", effect: allow}
"""
PAY: dict[str, Any] = {"tool": "pay.send", "arguments": {"cents": 500}}


async def published(world: World, risk: Risk = Risk.CRITICAL, **more: Any) -> None:
    await apply_policies(world.db, world.admin.actor, RULES)
    await publish(world.db, offered("pay.send", app="bank", risk=risk, server=None, **more))


@pytest.mark.proves("D.440")
async def test_a_call_declared_low_is_judged_by_the_risk_that_is_published(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(world.db, world.admin.actor, RULES)
    session = await opened(http, world.service)
    assert (await asked(http, world.service, session, **PAY, risk="low"))["verdict"] == "allow", "nobody knows it"
    await published(world)
    call = await asked(http, world.service, session, **PAY, risk="low")
    assert (call["verdict"], call["status"], call["risk"]) == ("deny", "rejected", "critical")
    assert call["rule"].startswith("org:dangerous")
    other = await asked(http, world.service, session, tool="pay.look", risk="low")
    assert (other["verdict"], other["risk"]) == ("allow", "low")
    higher = await asked(http, world.service, session, tool="pay.look", risk="critical")
    assert higher["verdict"] == "deny", "what is declared counts where it is higher"


@pytest.mark.proves("D.440")
async def test_a_tool_that_becomes_risky_before_its_call_begins_is_judged_again(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(world.db, world.admin.actor, RULES)
    session = await opened(http, world.service)
    call = await asked(http, world.service, session, **PAY, risk="low")
    assert call["status"] == "allowed"
    await published(world)
    begun = await post(http, world.service, f"/v1/calls/{call['id']}/intent", input_hash=call["input_hash"])
    assert (begun["status"], begun["next"]) == ("rejected", "stop")


@pytest.mark.proves("D.440")
async def test_what_a_steward_confirmed_takes_the_place_of_the_published_risk(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(world.db, world.admin.actor, RULES)
    await publish(world.db, offered(risk=Risk.LOW))
    session = await opened(http, world.service)
    query: dict[str, Any] = {"tool": "files.read_query", "risk": "low"}
    assert (await asked(http, world.service, session, **query))["verdict"] == "allow"
    draft = ConfirmationDraft(tool="files.read_query", digest=DIGEST, risk=Risk.CRITICAL)
    await agents.confirm_tool(world.db, world.admin.actor, draft)
    assert (await asked(http, world.service, session, **query))["verdict"] == "deny"


@pytest.mark.proves("D.440")
async def test_the_gates_of_a_risk_stand_before_a_call_that_declares_a_lower_one(
    http: httpx.AsyncClient, world: World
) -> None:
    stop = gate(
        "stop", {"type": "risk_threshold", "min_tier": "critical"}, questions=[question("sure", "acknowledgment")]
    )
    allow = [{"policy_id": "all", "type": "allow", "actions": ["pay.*"]}]
    text = manifest("com.acme.bank", "1.0.0", name="Bank", checkpoints=[stop], policies=allow)
    await govern(world, (await publish_atlas(world, text)).version.atlas_id)
    await published(world, Risk.CRITICAL)
    session = await opened(http, world.service)
    closed = await asked(http, world.service, session, status=409, **PAY, risk="low")
    assert closed["code"] == "gate_closed"


@pytest.mark.proves("D.440")
async def test_resolutions_permissions_explanations_and_simulations_know_the_risk(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(world.db, world.admin.actor, RULES)
    change = AgentChange(skill_config={"tools": ["pay.send"]})
    await agents.update_agent(world.db, world.admin.actor, "deployer", change, None)
    session = await opened(http, world.service)
    await asked(http, world.service, session, **PAY, risk="low")
    await published(world)
    one: dict[str, Any] = {"action": "pay.send", "arguments": {"cents": 500}, "risk": "low"}
    for request in (one, {"risk": "low"}):
        answer = await post(http, world.service, f"/v1/sessions/{session}/resolve", status=201, **request)
        (denied,) = answer["denied_actions"]
        assert (denied["action"], denied["risk"], denied["rule"]) == ("pay.send", "critical", "org:dangerous@2.1")
    (shown,) = (await permissions(http, world.service, session))["actions"]
    assert (shown["verdict"], shown["risk"]) == ("deny", "critical")
    what: dict[str, Any] = {"agent": "deployer", "tool": "pay.send", "risk": "low", "session_kind": "external"}
    explained = await post(http, world.admin, "/v1/policies/explain", **what)
    assert explained["risk"] == "critical"
    rules = RULES.replace("effect: deny", "effect: requires_approval")
    replayed = await post(http, world.admin, "/v1/policies/simulate", text=rules)
    (change,) = replayed["groups"]
    assert (change["tool"], change["before"]["verdict"]) == ("pay.send", "deny")
