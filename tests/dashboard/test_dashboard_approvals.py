"""The inbox and the card, as somebody without scripts uses them."""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import pending_soon
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.stages import held_job
from tests.fixtures.visitors import SENT, Visitor, asked, fields_of, open_shop, settled
from tests.fixtures.workers import call, make_agent, submit, turn, until, working

FOUR_EYES = """
policies:
  - {name: four-eyes, target: order, effect: requires_approval, approvers: {roles: [admin]}, self_approval: false}
"""
CLEARED = """
policies:
  - {name: cleared, target: order, effect: requires_approval, approvers: {roles: [admin, approver]}, clearance: 5}
"""


def shown(page: httpx.Response) -> str:
    """The text of a page, as somebody reads it."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


async def status_of(world: World, approval_id: object) -> ApprovalStatus:
    return (await approvals.get_approval(world.db, world.admin.actor, approval_id)).approval.status  # type: ignore[arg-type]


# The inbox -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.74")
async def test_what_i_may_decide_comes_first(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        pat = await strict.person(Role.MEMBER, name="Pat")
        theirs = await asked(strict, by=pat, slug="theirs")
        bea = await strict.person(Role.ADMIN, name="Bea")
        mine = await asked(strict, call("destroy", place="moon"), by=bea, slug="mine", message="clean up")
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get("/")
    text = shown(page)
    assert text.index("For you") < text.index("destroy") < text.index("Waiting for others") < text.index("order")
    assert page.text.index(str(mine.id)) < page.text.index(str(theirs.id))
    for words in ("Critical", "Medium risk", 'place="moon"', "Agent mine", "“clean up”", "One request waits for your"):
        assert words in text
    assert re.search(r"23 h 59 min left", text)
    guest = await Visitor.log_in(http, strict, await strict.person(Role.GUEST, name="Gus"))
    assert "order" not in shown(await guest.get("/")).replace("order to", "")
    own = shown(await (await Visitor.log_in(http, strict, pat)).get("/"))
    assert "order" in own
    assert "destroy" not in own


@pytest.mark.proves("D.74")
async def test_arrivals_are_announced_and_what_ends_stays_in_its_place(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        first = await asked(strict, slug="one")
        visitor = await Visitor.log_in(http, strict)
        page = await visitor.get("/")
        state = fields_of(page.text.replace('<form id="state" hidden>', '<form action="state">'), "state")
        same = await visitor.get("/inbox/live?" + str(httpx.QueryParams(state)))
        assert (same.status_code, same.content) == (204, b"")
        second = await asked(strict, slug="two")
        part = await visitor.get("/inbox/live?" + str(httpx.QueryParams(state)))
        assert "1 new request" in shown(part)
        assert str(second.id) not in part.text
        await visitor.decide(first.id, "approved")
        part = await visitor.get("/inbox/live?" + str(httpx.QueryParams(state)))
        row = part.text.index(f'id="row-{first.id}"')
        assert "row-over" in part.text[row - 60 : row]
        assert "Approved by Ada" in shown(part)
        assert str(second.id) not in part.text
        whole = await visitor.get("/")
        assert str(second.id) in whole.text
        assert "Decided lately" in shown(whole)


# Deciding ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.76")
async def test_approve(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        text = shown(await visitor.get(f"/approvals/{request.id}"))
        order = [
            "Medium risk", "order", "Arguments", '"count" : 2', '"item" : "tea"', "What it can do", "Changes something outside",
            "Medium risk, as declared by the tool", "Orders something.", "Who and why", "Agent shopper", "two, please", "Agent says", "I order.", "Rule", "default:owner",
            "Who may decide", "Ada", "Expires", "23 h 59 min", "the job fails", "Timeline", "Requested", "Approve", "Edit", "Deny",
        ]  # fmt: skip
        assert [words for words in order if words not in text] == []
        places = [text.index(words, text.index("Needs a decision") if words != "Medium risk" else 0) for words in order]
        assert places == sorted(places), dict(zip(order, places, strict=True))
        done = await visitor.decide(request.id, "approved")
        assert (done.status_code, done.headers["location"]) == (303, f"/approvals/{request.id}")
        assert await settled(strict, request.job_id) is JobStatus.COMPLETED
    assert SENT == [{"item": "tea", "count": 2}]
    after = await visitor.get(f"/approvals/{request.id}")
    assert "Approved by Ada" in shown(after)
    assert "in the dashboard" in shown(after)
    assert "/decide" not in after.text


async def test_a_risk_that_no_tool_declares_is_not_called_declared(http: httpx.AsyncClient, strict: World) -> None:
    app = App("tests")

    @app.tool()
    async def act() -> str:
        """Acts."""
        return "acted"

    job = await submit(strict, await make_agent(strict, [turn(call("act"))]))
    async with working(strict.db, app):
        (request,) = await pending_soon(strict, job)
        visitor = await Visitor.log_in(http, strict)
        text = shown(await visitor.get(f"/approvals/{request.id}"))
    assert "Medium risk, assumed: the tool declares none" in text


@pytest.mark.proves("D.76")
async def test_critical_risk_is_approved_with_a_second_press(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        bea = await strict.person(Role.ADMIN, name="Bea")  # of critical things nobody approves their own
        request = await asked(strict, call("destroy", place="moon"), by=bea)
        visitor = await Visitor.log_in(http, strict)
        first = await visitor.decide(request.id, "approved")
        assert first.status_code == 200
        assert "This call is critical." in shown(first)
        assert await status_of(strict, request.id) is ApprovalStatus.PENDING
        second = await visitor.submit(first, f"/approvals/{request.id}/decide", decision="approved")
        assert second.status_code == 303
        assert await settled(strict, request.job_id) is JobStatus.COMPLETED
    assert SENT == [{"destroyed": "moon"}]


@pytest.mark.proves("D.76")
async def test_deny_with_a_reason(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        done = await visitor.decide(request.id, "denied", reason="no tea on\r\nFridays ")
        assert done.status_code == 303
        assert await settled(strict, request.job_id) is JobStatus.FAILED
    card = shown(await visitor.get(f"/approvals/{request.id}"))
    assert "Denied by Ada" in card
    assert "“no tea on Fridays”" in card
    assert "no tea on" in shown(await visitor.get(f"/jobs/{request.job_id}"))
    assert SENT == []


@pytest.mark.proves("D.76")
async def test_edit_shows_the_difference_before_it_decides(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        path = f"/approvals/{request.id}"
        editor = await visitor.get(f"{path}/edit")
        draft = fields_of(editor.text, f"{path}/edit")["arguments"]
        assert json.loads(draft) == {"item": "tea", "count": 2}
        preview = await visitor.submit(editor, f"{path}/edit", arguments='{"item": "coffee", "count": 2}')
        assert preview.status_code == 200
        assert 'item "tea" "coffee"' in shown(preview)
        assert "1 value changes." in shown(preview)
        assert await status_of(strict, request.id) is ApprovalStatus.PENDING
        done = await visitor.submit(preview, f"{path}/decide", decision="approved")
        assert done.status_code == 303, done.text
        assert await settled(strict, request.job_id) is JobStatus.COMPLETED
    assert SENT == [{"item": "coffee", "count": 2}]
    card = shown(await visitor.get(path))
    assert "Edited: this differs from what the agent sent." in card
    assert '"tea" "coffee"' in card


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "Arguments are a JSON object"),
        ('{"item": "a", "item": "b"}', "`item` stands there twice"),
        ('{"item": "a", "count": NaN}', "NaN is not a JSON number"),
        ('{"item": "a", "count": 99999999999999999999999}', "count"),
        ('{"item": "tea", "count": 2}', "Nothing is changed"),
        ("[" * 3000, "not valid JSON"),
    ],
)
async def test_an_edit_that_cannot_be_is_explained_and_kept(
    http: httpx.AsyncClient, strict: World, draft: str, said: str
) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    visitor = await Visitor.log_in(http, strict)
    path = f"/approvals/{request.id}/edit"
    answer = await visitor.submit(await visitor.get(path), path, arguments=draft)
    assert answer.status_code == 422
    assert said in shown(answer)
    assert fields_of(answer.text, path)["arguments"] == draft
    assert await status_of(strict, request.id) is ApprovalStatus.PENDING


async def test_an_edit_that_breaks_the_schema_is_refused_on_the_editor(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    visitor = await Visitor.log_in(http, strict)
    path = f"/approvals/{request.id}"
    wrong = '{"item": "tea", "count": "many"}'
    preview = await visitor.submit(await visitor.get(f"{path}/edit"), f"{path}/edit", arguments=wrong)
    refused = await visitor.submit(preview, f"{path}/decide", decision="approved")
    assert refused.status_code == 422
    assert "do not fit the tool" in shown(refused)
    assert json.loads(fields_of(refused.text, f"{path}/edit")["arguments"]) == json.loads(wrong)
    assert await status_of(strict, request.id) is ApprovalStatus.PENDING


@pytest.mark.proves("D.76")
async def test_a_decision_on_an_older_version_says_what_changed(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        path = f"/approvals/{request.id}"
        old = await visitor.get(path)
        draft = JobDraft(agent="shopper", session_id=request.session_id, payload={"text": "again"})
        joined = await jobs.submit(strict.db, strict.admin.actor, draft)
        await until(strict, joined.id, JobStatus.WAITING_FOR_APPROVAL)
        live = await visitor.get(f"{path}/live?version=1&seen=x")
        assert live.headers["HX-Retarget"] == "#notice"
        assert "Version 2 is there" in shown(live)
        assert "<pre" not in live.text, "what somebody reads does not change under their eyes"
        stale = await visitor.submit(old, f"{path}/decide", decision="approved")
        assert stale.status_code == 409
        assert "Another identical call joined: this now decides 2 calls." in shown(stale)
        assert await status_of(strict, request.id) is ApprovalStatus.PENDING
        assert fields_of(stale.text, f"{path}/decide", "approved")["version"] == "2"
        forged = await visitor.submit(stale, f"{path}/decide", decision="approved", input_hash="0" * 64)
        assert "The arguments changed while you were reading." in shown(forged)
        assert (await visitor.submit(stale, f"{path}/decide", decision="approved")).status_code == 303
        assert await settled(strict, request.job_id) is JobStatus.COMPLETED
        assert await settled(strict, joined.id) is JobStatus.COMPLETED


@pytest.mark.proves("D.76")
async def test_of_two_who_decide_the_later_one_is_told_who_was_faster(http: httpx.AsyncClient, strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, CLEARED.replace("clearance: 5", "clearance: 0"))
    async with open_shop(strict):
        request = await asked(strict)
        ada = await Visitor.log_in(http, strict)
        grace = await Visitor.log_in(http, strict, await strict.person(Role.APPROVER, name="Grace"))
        page = await grace.get(f"/approvals/{request.id}")
        assert (await ada.decide(request.id, "denied", reason="no")).status_code == 303
        late = await grace.submit(page, f"/approvals/{request.id}/decide", decision="approved")
        assert late.status_code == 409
        assert "Ada was faster: this request is denied." in shown(late)
        assert "/decide" not in late.text
        # The same decision once more is no quarrel.
        again = await grace.submit(page, f"/approvals/{request.id}/decide", decision="denied")
        assert again.status_code == 303


async def test_after_the_deadline_nothing_is_decided(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get(f"/approvals/{request.id}")
    assert request.deadline is not None
    await Clock.install(admin, request.deadline)
    await admin.execute("update browser_session set last_seen_at = $1", request.deadline)
    late = await visitor.submit(page, f"/approvals/{request.id}/decide", decision="approved")
    assert late.status_code == 409
    assert "Its time is over." in shown(late)


# Who may not ---------------------------------------------------------------------------------------------------------


async def test_whoever_may_not_decide_is_told_why(http: httpx.AsyncClient, strict: World) -> None:
    await strict.person(Role.APPROVER, name="Cleo", clearance=5)
    await apply_policies(strict.db, strict.admin.actor, CLEARED)
    async with open_shop(strict):
        request = await asked(strict)
    low = await Visitor.log_in(http, strict, await strict.person(Role.APPROVER, clearance=4))
    page = await low.get(f"/approvals/{request.id}")
    assert "You cannot decide this. This needs clearance 5; yours is 4." in shown(page)
    assert "/decide" not in page.text
    token = fields_of(page.text, "/logout")["form_token"]
    forged = {"form_token": token, "decision": "approved", "version": "1", "input_hash": request.input_hash}
    refused = await low.send(f"/approvals/{request.id}/decide", forged)
    assert refused.status_code == 403
    assert "clearance 5" in shown(refused)
    assert await status_of(strict, request.id) is ApprovalStatus.PENDING


async def test_whoever_asked_may_deny_but_not_approve_where_the_policy_says_so(
    http: httpx.AsyncClient, strict: World
) -> None:
    await strict.person(Role.ADMIN, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    async with open_shop(strict):
        request = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        page = await visitor.get(f"/approvals/{request.id}")
        assert "You can deny this, but not approve it." in shown(page)
        with pytest.raises(AssertionError, match="no such form"):
            fields_of(page.text, f"/approvals/{request.id}/decide", "approved")
        assert (await visitor.decide(request.id, "denied")).status_code == 303
        assert await settled(strict, request.job_id) is JobStatus.FAILED


async def test_another_orgs_request_is_not_there(http: httpx.AsyncClient, strict: World, other: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    stranger = await Visitor.log_in(http, other)
    for path in ("", "/edit", "/live"):
        assert (await stranger.get(f"/approvals/{request.id}{path}")).status_code == 404
    token = fields_of((await stranger.get("/")).text, "/logout")["form_token"]
    forged = {"form_token": token, "decision": "approved", "version": "1", "input_hash": request.input_hash}
    assert (await stranger.send(f"/approvals/{request.id}/decide", forged)).status_code == 404
    assert (await stranger.get(f"/jobs/{request.job_id}")).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "maybe"},
        {"version": "one"},
        {"version": "٣"},
        {"version": "-1"},
        {"input_hash": "x"},
        {"reason": "x" * 2001},
    ],
    ids=str,
)
async def test_a_form_that_was_tampered_with_decides_nothing(
    http: httpx.AsyncClient, strict: World, change: dict[str, str]
) -> None:
    async with open_shop(strict):
        request = await asked(strict)
    visitor = await Visitor.log_in(http, strict)
    fields = fields_of((await visitor.get(f"/approvals/{request.id}")).text, f"/approvals/{request.id}/decide")
    answer = await visitor.send(f"/approvals/{request.id}/decide", {**fields, **change})
    assert answer.status_code == 422, answer.text
    assert await status_of(strict, request.id) is ApprovalStatus.PENDING


# Uncertain effects, and jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "status"), [("happened", "completed"), ("fail", "failed")])
async def test_an_uncertain_effect_is_answered(
    http: httpx.AsyncClient, world: World, verdict: str, status: str
) -> None:
    held = await held_job(world)
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, job_id=held.job)
    (card,) = [item for item in page.items if item.status is ApprovalStatus.PENDING]
    visitor = await Visitor.log_in(http, world)
    path = f"/approvals/{card.id}"
    shown_card = await visitor.get(path)
    assert "Did it happen?" in shown(shown_card)
    assert "nothing expires" in shown(shown_card)
    token = fields_of(shown_card.text, f"{path}/answer")
    assert (await visitor.send(f"{path}/answer", {**token, "verdict": "perhaps"})).status_code == 422
    done = await visitor.send(f"{path}/answer", {**token, "verdict": verdict, "note": "I looked"})
    assert done.status_code == 303, done.text
    late = await visitor.send(f"{path}/answer", {**token, "verdict": "did_not_happen"})
    assert late.status_code == 409
    assert "was faster" in shown(late)
    steps = await steering.list_steps(world.db, world.admin.actor, held.job, -1, 10)
    assert next(each.status for each in steps[1].calls if each.id == held.call) == status


@pytest.mark.proves("D.78")
async def test_the_page_of_a_job_tells_its_whole_story(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        path = f"/jobs/{request.job_id}"
        waiting = await visitor.get(path)
        text = shown(waiting)
        for words in ("Waiting for a person", "May this run?", "I order.", "waiting for a person", "Queued", "Running"):
            assert words in text
        bars = re.findall(r'<rect class="bar (\S+)" x="([\d.]+)" y="0" width="([\d.]+)"', waiting.text)
        assert {"bar-running", "bar-waiting-for-approval", "bar-step", "bar-approval-pending"} <= {b[0] for b in bars}
        assert all(float(x) >= 0 and float(width) > 0 and float(x) + float(width) <= 1000.1 for _, x, width in bars)
        seen = re.search(r'name="seen" value="(\w+)"', waiting.text)
        assert seen
        assert (await visitor.get(f"{path}/live?seen={seen.group(1)}")).status_code == 204
        await visitor.decide(request.id, "approved")
        await settled(strict, request.job_id)
        after = await visitor.get(f"{path}/live?seen={seen.group(1)}")
        assert after.status_code == 200
        assert "Completed" in shown(after)
        assert "ordered 2" in shown(after)
    assert str(request.job_id) in (await visitor.get("/jobs")).text
    assert str(request.job_id) in (await visitor.get("/jobs?status=completed")).text
    assert str(request.job_id) not in (await visitor.get("/jobs?status=failed")).text


@pytest.mark.proves("D.78")
async def test_a_job_is_steered_from_its_page_by_whoever_may(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        path = f"/jobs/{request.job_id}"
        watcher = await Visitor.log_in(http, strict, await strict.person(Role.STEWARD))
        assert "/pause" not in (await watcher.get(path)).text
        token = fields_of((await watcher.get(path)).text, "/logout")
        assert (await watcher.send(f"{path}/cancel", token)).status_code == 403
        visitor = await Visitor.log_in(http, strict)
        page = await visitor.get(path)
        assert (await visitor.submit(page, f"{path}/pause")).status_code == 303
        held = await visitor.get(path)
        assert "held: operator" in shown(held)
        assert "agent: suspended" in shown(held)
        words = {"operator_input": "Use the blue one."}
        assert (await visitor.submit(held, f"{path}/resume", **words)).status_code == 303
        page_of_messages = f"/v1/sessions/{request.session_id}/messages"
        said = (await http.get(page_of_messages, headers=strict.admin.headers)).json()["items"]
        assert [(m["role"], m["text"]) for m in said] == [("system", "Use the blue one.")]
        assert (await visitor.submit(page, f"{path}/cancel", reason="not now")).status_code == 303
        assert await settled(strict, request.job_id) is JobStatus.CANCELLED
        assert "Cancelled" in shown(await visitor.get(path))
        assert (await visitor.send(f"{path}/explode", token | fields_of(page.text, "/logout"))).status_code == 404
        over = await visitor.submit(page, f"{path}/pause")
        assert over.status_code == 409


# Hostile text --------------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script><b>\u202egnp.exe\u200b\"'&amp;"


@pytest.mark.proves("D.75")
async def test_agent_text_is_inert_and_complete_everywhere(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict, call("order", item=HOSTILE), slug="evil", message=HOSTILE)
        visitor = await Visitor.log_in(http, strict)
        paths = ["/", f"/approvals/{request.id}", f"/approvals/{request.id}/edit", f"/jobs/{request.job_id}", "/jobs"]
        for path in paths:
            page = (await visitor.get(path)).text
            assert "<script>alert" not in page, path
            assert "<b>" not in page, path
            assert "\u202e" not in page, path
            assert "\u200b" not in page, path
        assert "⟨U+202E⟩" in shown(await visitor.get(f"/approvals/{request.id}"))
        assert "hidden characters" in shown(await visitor.get("/"))
        await visitor.decide(request.id, "denied", reason=HOSTILE)
        await settled(strict, request.job_id)
        for path in [*paths[:2], *paths[3:]]:
            page = (await visitor.get(path)).text
            assert "<script>alert" not in page, path
            assert "\u202e" not in page, path


@pytest.mark.proves("D.75")
async def test_large_arguments_are_shown_to_the_end(http: httpx.AsyncClient, strict: World) -> None:
    tail = "the very last word"
    async with open_shop(strict):
        request = await asked(strict, call("order", item="\n".join(["x" * 99] * 2400) + tail))
    visitor = await Visitor.log_in(http, strict)
    page = shown(await visitor.get(f"/approvals/{request.id}"))
    assert page.count(tail) >= 2, "in the tree and in the raw form"
    assert "lines, scroll to read them all" in page
    assert tail not in shown(await visitor.get("/")), "a row stays a row"


async def test_a_race_of_browsers_has_one_winner(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        request = await asked(strict)
        visitors = [await Visitor.log_in(http, strict) for _ in range(4)]
        pages = [await visitor.get(f"/approvals/{request.id}") for visitor in visitors]
        path = f"/approvals/{request.id}/decide"
        answers = await asyncio.gather(
            *(
                visitor.submit(page, path, decision="approved" if n % 2 else "denied")
                for n, (visitor, page) in enumerate(zip(visitors, pages, strict=True))
            )
        )
        codes = [answer.status_code for answer in answers]
        final = await status_of(strict, request.id)
        winners = codes[1::2] if final is ApprovalStatus.APPROVED else codes[0::2]
        losers = codes[0::2] if final is ApprovalStatus.APPROVED else codes[1::2]
        assert winners == [303, 303]
        assert losers == [409, 409]
        await settled(strict, request.job_id)
    assert len(SENT) == (final is ApprovalStatus.APPROVED)
