"""Hooks of coding agents over HTTP, with the payloads that they send."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import httpx
import pytest
from starlette.datastructures import State

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.calls.model import MAX_HOOK_BYTES
from cortex_plane.calls.store import queries
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.calls.test_http_calls import decide
from tests.fixtures.people import Person, World, apply_policies

COMMAND = {"command": "rm -r build", "description": "Remove the build"}
RULES = """
policies:
  - {name: reads, target: claude.read, effect: allow}
  - {name: never, target: claude.web_fetch, effect: deny, reason: "Nothing leaves this machine."}
  - {name: asks, target: "*", effect: requires_approval, template: dev_only}
"""
CLAUDE = "claude-code"
NESTED = json.loads("[" * 600 + "]" * 600)


def claude(
    tool: str = "Bash", id: str = "toolu_01", session: str = "f7178682-e6b5-4836-9166-312937e9e1f8", **more: Any
) -> dict[str, Any]:
    return {
        "session_id": session, "transcript_path": "/home/u/.claude/projects/p/f7178682.jsonl", "cwd": "/home/u/p", "prompt_id": "25266e9d",
        "permission_mode": "default", "effort": {"level": "medium"}, "hook_event_name": "PreToolUse", "tool_name": tool,
        "tool_input": COMMAND, "tool_use_id": id, **more,
    }  # fmt: skip


def after(payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return payload | {"hook_event_name": "PostToolUse", "tool_response": {"stdout": "ok"}, "duration_ms": 12} | more


def gemini(at: str, event: str = "BeforeTool", **more: Any) -> dict[str, Any]:
    return {
        "session_id": "g1", "transcript_path": "/home/u/g1.json", "cwd": "/home/u/p", "hook_event_name": event, "timestamp": at,
        "tool_name": "run_shell_command", "tool_input": COMMAND, **more,
    }  # fmt: skip


class Hooks:
    """A coding agent's side: it sends events, and reads answers."""

    def __init__(
        self, http: httpx.AsyncClient, world: World, dialect: str = CLAUDE, person: Person | None = None
    ) -> None:
        self.http, self.world, self.dialect, self.person = http, world, dialect, person or world.service

    async def send(
        self, payload: Any, *, status: int = 200, headers: dict[str, str] | None = None, **query: Any
    ) -> Any:
        answer = await self.http.post(
            f"/v1/hooks/{self.dialect}", json=payload, params={"agent": "deployer", **query}, headers=headers or self.person.headers
        )  # fmt: skip
        assert answer.status_code == status, answer.text
        return answer.json()

    async def verdict(
        self, payload: dict[str, Any], headers: dict[str, str] | None = None, **query: Any
    ) -> tuple[str, str]:
        output = (await self.send(payload, headers=headers, **query))["hookSpecificOutput"]
        assert output["hookEventName"] == "PreToolUse"
        return output["permissionDecision"], output.get("permissionDecisionReason", "")

    async def calls(self) -> list[dict[str, Any]]:
        answer = await self.http.get("/v1/calls", headers=self.world.admin.headers)
        ids = [call["id"] for call in reversed(answer.json()["items"])]
        return [(await self.http.get(f"/v1/calls/{id}", headers=self.world.admin.headers)).json() for id in ids]


@pytest.fixture
async def agent(http: httpx.AsyncClient, strict: World) -> Hooks:
    await apply_policies(strict.db, strict.admin.actor, RULES)
    return Hooks(http, strict)


@pytest.mark.proves("D.950")
async def test_a_tool_is_allowed_denied_or_deferred_and_runs_once(agent: Hooks) -> None:
    read = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})
    assert await agent.verdict(read) == ("allow", "")
    assert await agent.send(after(read, tool_response={"file": {"content": "x"}})) == {}
    decision, reason = await agent.verdict(claude("WebFetch", "toolu_2", tool_input={"url": "https://a.example"}))
    assert (decision, "Nothing leaves this machine." in reason, "never" in reason) == ("deny", True, True)
    bash = claude(id="toolu_3")
    # Headless it is deferred, as often as it is asked about before somebody decided; with a person at the terminal it is denied.
    for _ in range(2):
        decision, reason = await agent.verdict(bash, defer="true")
        (_, _, waiting) = await agent.calls()
        assert decision == "defer"
        assert f"/approvals/{waiting['approval_id']}" in reason
    headers = agent.person.headers | {"Cortex-Entrypoint": "sdk-cli"}
    assert (await agent.send(bash, headers=headers))["hookSpecificOutput"]["permissionDecision"] == "defer"
    assert (await agent.verdict(bash))[0] == "deny"
    assert waiting["tool"] == "claude.bash"
    assert waiting["arguments"] == COMMAND
    await decide(agent.world, waiting)
    assert await agent.verdict(bash, defer="true") == ("allow", "")
    # Whoever repeats it, or resumes the session a second time, runs nothing.
    decision, reason = await agent.verdict(bash, defer="true")
    assert (decision, "does not run twice" in reason) == ("deny", True)
    assert await agent.send(after(bash)) == {}
    assert await agent.send(after(bash)) == {}
    decision, reason = await agent.verdict(bash, defer="true")
    assert (decision, 'ran already and is not run again. Its result: {"stdout":"ok"}' in reason) == ("deny", True)
    failed = claude("Read", "toolu_4")
    await agent.verdict(failed)
    await agent.send(failed | {"hook_event_name": "PostToolUseFailure", "error": "no such file", "is_interrupt": False})
    states = [(call["tool"], call["status"], call["error"]) for call in await agent.calls()]
    assert states[0][:2] == ("claude.read", "completed")
    assert states[2][:2] == ("claude.bash", "completed")
    assert states[3] == ("claude.read", "failed", "no such file")
    assert len({call["session_id"] for call in await agent.calls()}) == 1


@pytest.mark.proves("D.950", "D.953")
@pytest.mark.parametrize("dialect", ["claude-code", "gemini", "codex"])
async def test_an_edited_call_runs_as_the_approver_left_it(agent: Hooks, dialect: str) -> None:
    """Codex runs the original arguments where a hook changes them, and Gemini CLI merges: what they cannot run they make themselves."""
    hooks = Hooks(agent.http, agent.world, dialect)
    payload = gemini("2026-01-01T00:00:00Z") if dialect == "gemini" else claude()
    process = {**agent.person.headers, "Cortex-Process": "a"}
    await hooks.send(payload, headers=process)
    (call,) = await agent.calls()
    edited = {"command": "rm -r build/cache"}
    await decide(agent.world, call, arguments=edited)
    (call,) = await agent.calls()
    await decide(agent.world, call)
    answer = await hooks.send(payload, headers=process)
    again = payload | {"tool_input": edited, "tool_use_id": "toolu_2", "timestamp": "2026-01-01T00:01:00Z"}
    if dialect == "claude-code":
        output = answer["hookSpecificOutput"]
        assert (output["permissionDecision"], output["updatedInput"]) == ("allow", edited)
        assert "it runs with" in output["additionalContext"]
    else:
        assert "deny" in (answer.get("decision"), answer.get("hookSpecificOutput", {}).get("permissionDecision"))
        assert '{"command":"rm -r build/cache"}' in str(answer)
        assert await hooks.send(again, headers=process) == ({"decision": "allow"} if dialect == "gemini" else {})
    (call,) = await agent.calls()
    assert (call["status"], call["arguments"]) == ("intended", edited)
    repeated = again | {"tool_use_id": "toolu_3", "timestamp": "2026-01-01T00:02:00Z"}
    last = await hooks.send(repeated, headers=process)
    assert "A person must approve it" in str(last)


@pytest.mark.proves("D.950")
async def test_an_approval_is_for_one_tool_and_no_server_takes_the_name_of_a_built_in_one(agent: Hooks) -> None:
    repo: dict[str, Any] = {"tool_input": {"repo": "x"}}
    await agent.verdict(claude("mcp__github__deleteRepo", "toolu_1", **repo), defer="true")
    (call,) = await agent.calls()
    assert call["tool"] == "mcp.github.delete_repo"
    await decide(agent.world, call)
    # The same name for policies: that somebody approved the one says nothing about the other, under whatever id.
    for id in ("toolu_2", "toolu_3"):
        assert (await agent.verdict(claude("mcp__github__delete_repo", id, **repo), defer="true"))[0] != "allow"
    assert len({call["approval_id"] for call in await agent.calls()}) == 2
    assert (await agent.verdict(claude("mcp__github__deleteRepo", "toolu_4", **repo), defer="true"))[0] == "allow"
    for foreign in ("mcp__claude__Read", "mcp__Claude__read", "mcp__-__Read", "claude.read", "Claude:Read"):
        assert (await agent.verdict(claude(foreign, f"toolu_{foreign}")))[0] == "deny"
    names = {call["tool"] for call in await agent.calls()}
    assert names == {"mcp.github.delete_repo", "mcp.claude.read", "mcp.read"}
    assert (await agent.verdict(claude("Read", "toolu_5")))[0] == "allow"


@pytest.mark.proves("D.950")
async def test_an_approval_is_for_one_directory(agent: Hooks, http: httpx.AsyncClient) -> None:
    staging: dict[str, Any] = {"cwd": "/srv/staging"}
    production: dict[str, Any] = {"cwd": "/srv/production"}
    await agent.verdict(claude(id="toolu_1", **staging), defer="true")
    (call,) = await agent.calls()
    card = await http.get(f"/v1/approvals/{call['approval_id']}", headers=agent.world.admin.headers)
    assert card.json()["approval"]["agent_says"] == "Bash, in /srv/staging"
    # Another id joins the call while it waits; then its session is resumed elsewhere.
    await agent.verdict(claude(id="toolu_2", **staging), defer="true")
    await decide(agent.world, call)
    for id in ("toolu_1", "toolu_2", "toolu_3"):
        assert (await agent.verdict(claude(id=id, **production), defer="true"))[0] in ("deny", "defer")
    assert (await agent.verdict(claude(id="toolu_2", **staging), defer="true"))[0] == "allow"


@pytest.mark.proves("D.950")
async def test_a_call_of_a_process_that_is_gone_does_not_run_again_until_a_person_answered(agent: Hooks) -> None:
    read = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})
    first, second = ({**agent.person.headers, "Cortex-Process": name} for name in "ab")
    assert (await agent.verdict(read, headers=first))[0] == "allow"
    # The same process may make the same call beside one that runs.
    assert (await agent.verdict(read | {"tool_use_id": "toolu_2"}, headers=first))[0] == "allow"
    await agent.send(after(read | {"tool_use_id": "toolu_2"}))
    # The process is killed. Its session goes on in another one, which makes the call again.
    again = read | {"tool_use_id": "toolu_3", "prompt_id": "4a9b"}
    decision, reason = await agent.verdict(again, headers=second, defer="true")
    assert (decision, "whether it happened" in reason, "/approvals/" in reason) == ("defer", True, True)
    (call, _) = await agent.calls()
    assert (call["status"], call["approval_kind"]) == ("uncertain", "uncertain_effect")
    # Without the header a turn tells it too, and without both nothing runs again.
    edit = claude("Read", "toolu_4", tool_input={"file_path": "/home/u/p/b.py"})
    assert (await agent.verdict(edit))[0] == "allow"
    assert (await agent.verdict(edit | {"tool_use_id": "toolu_5", "prompt_id": "4a9b"}))[0] == "deny"
    nameless = claude("Read", "toolu_6", tool_input={"file_path": "/home/u/p/c.py"}, prompt_id=None)
    assert (await agent.verdict(nameless))[0] == "allow"
    assert (await agent.verdict(nameless | {"tool_use_id": "toolu_7"}))[0] == "deny"


@pytest.mark.proves("D.950")
async def test_a_denied_call_gives_its_reason(agent: Hooks) -> None:
    await agent.verdict(claude(), defer="true")
    (call,) = await agent.calls()
    await decide(agent.world, call, Choice.DENIED, reason="Not the build.")
    decision, reason = await agent.verdict(claude(), defer="true")
    assert (decision, "Not the build." in reason) == ("deny", True)


@pytest.mark.proves("D.951")
async def test_of_parallel_calls_the_first_is_deferred_and_the_others_come_again(agent: Hooks) -> None:
    payloads = [claude(id=f"toolu_{n}", tool_input={"command": f"make {n}"}) for n in range(3)]
    answers = await asyncio.gather(*(agent.verdict(payload, defer="true") for payload in payloads))
    assert sorted(decision for decision, _ in answers) == ["defer", "deny", "deny"]
    first = next(n for n, (decision, _) in enumerate(answers) if decision == "defer")
    denied = [n for n in range(3) if n != first]
    assert all("Make this call again after this one." in answers[n][1] for n in denied)
    calls = {call["arguments"]["command"]: call for call in await agent.calls()}
    assert len(calls) == 3
    for call in calls.values():
        await decide(agent.world, call)
    assert (await agent.verdict(payloads[first], defer="true"))[0] == "allow"
    # The model makes the others again, which gives them new ids: each is the call that was approved, once.
    for n in denied:
        again = payloads[n] | {"tool_use_id": f"toolu_again_{n}"}
        assert (await agent.verdict(again, defer="true"))[0] == "allow"
        await agent.send(after(again))
    done = {call["id"]: call["status"] for call in await agent.calls()}
    assert sorted(done.values()) == ["completed", "completed", "intended"]
    assert (await agent.verdict(payloads[denied[0]] | {"tool_use_id": "toolu_new"}, defer="true"))[0] == "defer"


@pytest.mark.proves("D.951")
async def test_a_hook_is_held_for_the_decision(agent: Hooks) -> None:
    held = asyncio.create_task(agent.verdict(claude(), wait=30))
    async with asyncio.timeout(20):
        while not (calls := await agent.calls()):
            pass
    await decide(agent.world, calls[0])
    assert await held == ("allow", "")


@pytest.mark.proves("D.952")
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"tool_input": "rm"}, "`tool_input` must be an object"),
        ({"tool_use_id": None}, "`tool_use_id` must be a text"),
        ({"session_id": "s" * 300}, "`session_id` must be a text"),
        ({"tool_name": "a\x00b"}, "`tool_name` must be a text"),
        ({"tool_input": {"content": "x" * 300_000}}, "262144"),
        ({"tool_input": {"n": 2**70}}, "cannot be asked about"),
    ],
)
async def test_what_cannot_be_asked_about_is_denied_in_the_agents_own_words(
    agent: Hooks, broken: dict[str, Any], words: str
) -> None:
    decision, reason = await agent.verdict(claude(**broken), defer="true")
    assert decision == "deny"
    assert words in reason
    assert await agent.calls() == []


@pytest.mark.proves("D.952")
async def test_forged_callers_and_other_events_run_nothing(agent: Hooks, other: World) -> None:
    # Coding agents block where the request fails, and show its status.
    await agent.send(claude(), status=401, headers={"Authorization": "Bearer cortex_key_wrong"})
    await agent.send({}, status=422)
    await agent.send(["PreToolUse"], status=422)
    await agent.send(claude(tool_input={"content": "x" * MAX_HOOK_BYTES}), status=413)
    # An event of another coding agent, or one that is not about tools, is no call without objection.
    for event in ("BeforeTool", "SessionStart", ""):
        problem = await agent.send(claude(hook_event_name=event), status=422)
        assert "hook_event_name" in str(problem)
    missing, reason = await agent.verdict(claude(), agent="nobody")
    assert (missing, "cortex agent create nobody" in reason) == ("deny", True)
    assert "did not record" in (await agent.send(after(claude())))["systemMessage"]
    assert await agent.calls() == []
    # Another org, with the same names and ids, has calls of its own, and says nothing about these.
    await agent.verdict(claude(), defer="true")
    stranger = Hooks(agent.http, other, person=other.service)
    assert "did not record" in (await stranger.send(after(claude())))["systemMessage"]
    await apply_policies(other.db, other.admin.actor, RULES)
    await stranger.verdict(claude(), defer="true")
    (ours,), (theirs,) = await agent.calls(), await stranger.calls()
    assert ours["id"] != theirs["id"]
    await decide(other, theirs)
    assert (await agent.verdict(claude(), defer="true"))[0] == "defer"


@pytest.mark.proves("D.953")
async def test_agents_without_ids_and_without_defer(agent: Hooks) -> None:
    gemini_cli = Hooks(agent.http, agent.world, "gemini")
    denied = await gemini_cli.send(gemini("2026-01-01T00:00:00Z"), defer="true")
    assert denied["decision"] == "deny"
    (call,) = await agent.calls()
    assert f"/approvals/{call['approval_id']}" in denied["reason"]
    assert call["tool"] == "gemini.run_shell_command"
    await decide(agent.world, call)
    assert await gemini_cli.send(gemini("2026-01-01T00:01:00Z")) == {"decision": "allow"}
    response = {"llmContent": "ok", "returnDisplay": "ok"}
    assert await gemini_cli.send(gemini("2026-01-01T00:02:00Z", "AfterTool", tool_response=response)) == {}
    (call,) = await agent.calls()
    assert (call["status"], call["result"]) == ("completed", response)

    codex = Hooks(agent.http, agent.world, "codex")
    payload = claude("Bash", "call_1", session="c1", turn_id="t1")
    assert (await codex.verdict(payload, defer="true"))[0] == "deny"
    call = (await agent.calls())[-1]
    await decide(agent.world, call)
    assert await codex.send(payload) == {}
    assert await codex.send(after(payload, tool_response="ok")) == {}
    assert ((await agent.calls())[-1]["tool"], (await agent.calls())[-1]["status"]) == ("codex.bash", "completed")
    assert UUID(call["id"])


@pytest.mark.proves("D.1093")
async def test_a_call_that_a_person_cleared_runs_under_the_id_that_the_model_gives_it_next(agent: Hooks) -> None:
    first, second = ({**agent.person.headers, "Cortex-Process": name} for name in "ab")
    read = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})
    for payload in (read, claude(id="toolu_a")):
        await agent.verdict(payload, headers=first, defer="true")
        call = (await agent.calls())[-1]
        if call["status"] == "awaiting":
            await decide(agent.world, call)
            assert (await agent.verdict(payload, headers=first, defer="true"))[0] == "allow"
        # Its process is gone; a person says that it did not happen.
        again = payload | {"prompt_id": "p2", "tool_use_id": payload["tool_use_id"] + "_2"}
        assert (await agent.verdict(again, headers=second, defer="true"))[0] == "defer"
        await did_not_happen(agent, call["id"])
        third = payload | {"prompt_id": "p2", "tool_use_id": payload["tool_use_id"] + "_3"}
        assert (await agent.verdict(third, headers=second, defer="true"))[0] == "allow"
        assert await agent.send(after(third), headers=second) == {}
        for old in (payload, again):
            assert (await agent.verdict(old, headers=second, defer="true"))[0] == "deny"
    assert [(call["status"], call["attempt"]) for call in await agent.calls()] == [("completed", 2), ("completed", 2)]
    (session_id,) = {call["session_id"] for call in await agent.calls()}
    done = await agent.http.post(f"/v1/sessions/{session_id}/complete", json={}, headers=agent.person.headers)
    assert done.status_code == 200, done.text


async def did_not_happen(agent: Hooks, call_id: str) -> None:
    call = next(call for call in await agent.calls() if call["id"] == call_id)
    assert call["status"] == "uncertain"
    path = f"/v1/jobs/{call['job_id']}/calls/{call['id']}/settle"
    answer = await agent.http.post(path, json={"verdict": "did_not_happen"}, headers=agent.world.admin.headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.proves("D.1094")
async def test_a_late_result_of_an_earlier_attempt_does_not_settle_a_later_one(agent: Hooks) -> None:
    first, second = ({**agent.person.headers, "Cortex-Process": name} for name in "ab")
    read = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})
    assert (await agent.verdict(read, headers=first))[0] == "allow"
    assert (await agent.verdict(read, headers=second, defer="true"))[0] == "defer"
    (call,) = await agent.calls()
    await did_not_happen(agent, call["id"])
    assert (await agent.verdict(read, headers=second))[0] == "allow"
    late = await agent.send(after(read, tool_response={"stdout": "a's"}), headers=first)
    assert "Another process began this call again" in late["systemMessage"]
    (call,) = await agent.calls()
    assert (call["status"], call["attempt"]) == ("intended", 2)
    assert await agent.send(after(read, tool_response={"stdout": "b's"}), headers=second) == {}
    (call,) = await agent.calls()
    assert (call["status"], call["result"]) == ("completed", {"stdout": "b's"})


@pytest.mark.proves("D.1093")
async def test_an_edited_call_of_a_process_that_is_gone_stays_in_doubt(agent: Hooks) -> None:
    """Gemini CLI merges arguments, so it makes a call itself from which an approver took one away."""
    hooks = Hooks(agent.http, agent.world, "gemini")
    first, second = ({**agent.person.headers, "Cortex-Process": name} for name in "ab")
    edited = {"command": "make deploy-staging"}
    await apply_policies(
        agent.world.db,
        agent.world.admin.actor,
        """
        policies:
          - {name: staging, target: gemini.run_shell_command, when: "args.command == 'make deploy-staging'", effect: allow}
          - {name: asks, target: "*", effect: requires_approval, template: dev_only}
        """,
    )
    await hooks.send(gemini("t1"), headers=first)
    (call,) = await agent.calls()
    await decide(agent.world, call, arguments=edited)
    (call,) = await agent.calls()
    await decide(agent.world, call)
    assert (await hooks.send(gemini("t2"), headers=first))["decision"] == "deny"
    assert await hooks.send(gemini("t3", tool_input=edited), headers=first) == {"decision": "allow"}
    again = await hooks.send(gemini("t4", tool_input=edited), headers=second)
    assert (again["decision"], "whether it happened" in again["reason"]) == ("deny", True)
    (call,) = await agent.calls()
    assert (call["status"], call["arguments"]) == ("uncertain", edited)


@pytest.mark.proves("D.1092")
async def test_a_session_that_a_person_ended_is_not_opened_again(agent: Hooks) -> None:
    read = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})
    assert (await agent.verdict(read))[0] == "allow"
    (call,) = await agent.calls()
    await agent.send(after(read))
    path = f"/v1/sessions/{call['session_id']}"
    # Its agent may complete it, and go on.
    assert (await agent.http.post(f"{path}/complete", json={}, headers=agent.person.headers)).status_code == 200
    assert (await agent.verdict(read | {"tool_use_id": "toolu_2"}))[0] == "allow"
    (_, call) = await agent.calls()
    ended = await agent.http.post(
        f"/v1/sessions/{call['session_id']}/terminate", json={"reason": "stop"}, headers=agent.world.admin.headers
    )
    assert ended.status_code == 200, ended.text
    for id in ("toolu_3", "toolu_4"):
        decision, reason = await agent.verdict(read | {"tool_use_id": id}, defer="true")
        assert (decision, "Somebody ended this session" in reason) == ("deny", True)
    assert await agent.send(after(read | {"tool_use_id": "toolu_2"})) == {}
    assert len(await agent.calls()) == 2
    # Another session of the coding agent is not it.
    assert (await agent.verdict(claude("Read", "toolu_5", session="another")))[0] == "allow"


@pytest.mark.proves("D.1095")
@pytest.mark.parametrize(
    ("response", "status"),
    [
        ({"error": "", "data": 1}, "completed"),
        ({"error": False}, "completed"),
        ({"error": {}}, "completed"),
        ({"error": []}, "completed"),
        ({"error": 0}, "completed"),
        ({"error": "no such file"}, "failed"),
        ({"error": {"code": 1}}, "failed"),
        ({"error": {"a": NESTED}}, "failed"),
        ({"file": {"base64": "x" * 1_100_000}}, "completed"),
    ],
    ids=range(9),
)
async def test_a_result_is_recorded_whatever_it_is(agent: Hooks, response: dict[str, Any], status: str) -> None:
    read = claude("Read", "toolu_1")
    assert (await agent.verdict(read))[0] == "allow"
    assert await agent.send(after(read, tool_response=response)) == {}
    assert [call["status"] for call in await agent.calls()] == [status]


@pytest.mark.proves("D.1096")
async def test_links_name_the_address_that_the_plane_is_configured_with(agent: Hooks, app_state: State) -> None:
    forged = {**agent.person.headers, "Host": "evil.example"}
    app_state.channels = ServedChannels(public_url="https://plane.example.org/")
    _, reason = await agent.verdict(claude(), headers=forged, defer="true")
    assert ("https://plane.example.org/approvals/" in reason, "evil" in reason) == (True, False)


COPIES = (
    """insert into step select (jsonb_populate_record(null::step, to_jsonb(s) || jsonb_build_object('step_index', n))).*
    from step s, generate_series(1, 300) n where s.job_id = $1 and s.step_index = 0""",
    """insert into tool_call select (jsonb_populate_record(
      null::tool_call, to_jsonb(c) || jsonb_build_object('id', md5(n::text), 'step_index', n))).*
    from tool_call c, generate_series(1, 300) n where c.job_id = $1 and c.step_index = 0""",
    """insert into external_call select (jsonb_populate_record(
      null::external_call, to_jsonb(x) || jsonb_build_object('call_id', md5(n::text), 'key', 'k' || n))).*
    from external_call x, generate_series(1, 300) n where x.job_id = $1""",
)


def rows_read(plan: dict[str, Any]) -> float:
    """By all scans of a plan, with those that a filter took away."""
    inside = sum(rows_read(part) for part in plan.get("Plans", ()))
    own: float = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return inside + own if "Relation Name" in plan else inside


@pytest.mark.fresh_database
@pytest.mark.proves("D.1099")
async def test_hooks_of_a_long_session_read_only_the_calls_that_may_wait(agent: Hooks) -> None:
    read = claude("Read", "toolu_1", tool_input={"file_path": "/home/u/p/a.py"})
    await agent.verdict(read)
    await agent.send(after(read))
    (call,) = await agent.calls()
    job, session = UUID(call["job_id"]), UUID(call["session_id"])
    wanted = (session, agent.person.actor.identity, b"x" * 32, "d" * 64, b"y" * 32, "key")
    async with agent.world.db.transaction(agent.world.org_id) as tx:
        for sql in COPIES:
            await tx.rows(sql, job)
        for query, values in ((queries.find_waiting_call, wanted), (queries.find_first_waiting, (job,))):
            (row,) = await tx.rows(f"explain (analyze, format json) {query}", *values)
            assert rows_read(row["QUERY PLAN"][0]["Plan"]) < 10
