"""Signed links as a person without scripts uses them, and as everything else fetches them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice, DelegationDraft
from cortex_plane.approvals.verbs import approvals
from cortex_plane.kernel.shares import FAILURES
from cortex_plane.tenancy.model.orgs import MemberChange, OrgChange, OrgSettingsChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.approvals.test_credentials import ANY_APPROVER, CLEARED, CRITICAL, TWO_OF_THREE
from tests.dashboard.test_dashboard_approvals import shown as read
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.credentials import CALLBACK, by_token, form_of, link_for, press, token_for
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.visitors import Visitor


async def one(world: World, version: str = "1.0", slug: str = "shipper") -> Approval:
    _, (approval,) = await waiting(world, Shipping(), ship(version), slug=slug)
    return approval


async def status_of(world: World, approval: Approval) -> ApprovalStatus:
    return (await shown(world, approval.id)).status


def with_query(link: str, **changes: str | None) -> str:
    address = urlsplit(link)
    query = {k: v for k, v in (dict(parse_qsl(address.query)) | changes).items() if v is not None}
    return address._replace(query=urlencode(query)).geturl()


def account(person: Person) -> str:
    return str(person.actor.user_account_id)


# Looking -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.153")
async def test_the_page_shows_the_card_and_asks_once(http: httpx.AsyncClient, strict: World) -> None:
    approval = await one(strict, "2.0\u202e‮0.1")
    page = await http.get(await link_for(strict, approval))
    assert page.status_code == 200, page.text
    text = read(page)
    for words in ("ship", "High risk", "Agent shipper", "I ship.", "⟨U+202E⟩", "1 vote", "left", "You decide as Ada."):
        assert words in text, words
    assert approval.input_hash in page.text
    assert page.text.count("<form") == 1
    assert page.text.count("<button") == 1
    assert "Approve this call" in text
    assert "Deny" not in text
    assert "<script" not in page.text
    assert page.headers["Referrer-Policy"] == "same-origin", "no other site is told of the address"
    assert page.headers["Cache-Control"] == "no-store"
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy
    deny = read(await http.get(await link_for(strict, approval, Choice.DENIED)))
    assert "Deny this call" in deny
    assert "Approve" not in deny


@pytest.mark.proves("D.153")
async def test_get_and_head_never_decide_however_they_ask(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    approval = await one(strict)
    links = [await link_for(strict, approval, choice) for choice in Choice]
    forms = [form_of(await http.get(link)) for link in links]
    before = await digests(admin)
    for link, form in itertools.product(links, forms):
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"):
            for query in ({}, form, {"decision": "approved"}, {"_method": "POST"}, {"confirm": "1", "utm": "x"}):
                address = link + "&" + urlencode(query)
                for sent in (link, address):
                    answer = await http.request(
                        method, sent, headers={"X-HTTP-Method-Override": "POST", "Purpose": "prefetch"}
                    )
                    assert answer.status_code in ((200,) if method in ("GET", "HEAD") else (405,)), (method, sent)
    assert await digests(admin) == before
    assert (await http.head(links[0])).content == b""
    assert (await press(http, links[0])).status_code == 200
    assert await status_of(strict, approval) is ApprovalStatus.APPROVED


@pytest.mark.proves("D.153")
async def test_links_work_under_both_paths(http: httpx.AsyncClient, strict: World) -> None:
    approval = await one(strict)
    link = await link_for(strict, approval)
    short = link.replace("/api/v1/", "/v1/")
    assert (await http.get(short)).status_code == 200
    assert read(await press(http, short)).startswith("Approved. ")


# Deciding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", Choice)
@pytest.mark.proves("D.154")
async def test_a_press_decides_and_a_second_one_says_so(http: httpx.AsyncClient, strict: World, choice: Choice) -> None:
    approval = await one(strict)
    link = await link_for(strict, approval, choice)
    page = await http.get(link)
    form = form_of(page) | {"reason": "I read it\r\ntwice", "answer": "Another way."}
    word = "answered" if choice is Choice.RESPONDED else str(choice)
    done = await http.post(link, data=form)
    assert done.status_code == 200
    assert f"{word.capitalize()}." in read(done)
    after = await shown(strict, approval.id)
    assert after.status.value == choice.value
    assert (after.resolution_reason, after.resolved_via) == ("I read it\ntwice", "email")
    again = await http.post(link, data=form)
    assert again.status_code == 200
    assert f"Already {word} by Ada." in read(again)
    later = await http.get(link)
    assert form_of(later) == {}
    assert f"{word.capitalize()} by Ada" in read(later)


@pytest.mark.proves("D.154")
async def test_a_form_that_no_page_of_this_link_carried_decides_nothing(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    approval, another = await one(strict), await one(strict, "9", slug="other")
    bea = await strict.person(Role.ADMIN, name="Bea")
    link = await link_for(strict, approval)
    good = form_of(await http.get(link))
    before = await digests(admin)
    elsewhere = [
        form_of(await http.get(await link_for(strict, approval, Choice.DENIED))),
        form_of(await http.get(await link_for(strict, another))),
        form_of(await http.get(await link_for(strict, approval, to=bea))),
        {name: value for name, value in good.items() if name != "nonce"},
        good | {"nonce": "0" * 64},
        good | {"version": "2"},
        good | {"input_hash": "0" * 64},
        good | {"issued": str(int(good["issued"]) + 60)},
        {},
    ]
    for form in elsewhere:
        answer = await http.post(link, data=form)
        assert answer.status_code == 403, form
        assert "Nothing was decided." in read(answer)
        assert form_of(answer).keys() == good.keys()  # the card again, to decide on
    assert await digests(admin) == before
    assert (await http.post(link, data=good)).status_code == 200


@pytest.mark.proves("D.153", "D.596")
@pytest.mark.parametrize(
    ("headers", "counts"),
    [
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://plane"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://plane"}, True),
        ({"Origin": "http://plane"}, True),
        ({}, True),
    ],
    ids=str,
)
async def test_form_of_another_site_decides_nothing(
    http: httpx.AsyncClient, strict: World, headers: dict[str, str], counts: bool
) -> None:
    approval = await one(strict)
    link = await link_for(strict, approval)
    answer = await http.post(link, data=form_of(await http.get(link)), headers=headers)
    assert answer.status_code == (200 if counts else 403), answer.text
    expected = ApprovalStatus.APPROVED if counts else ApprovalStatus.PENDING
    assert await status_of(strict, approval) is expected
    if not counts:
        assert "nothing was done" in read(answer)
        assert (await press(http, link)).status_code == 200, "the link itself stays good"


@pytest.mark.proves("D.154")
async def test_only_a_small_form_is_read(http: httpx.AsyncClient, strict: World) -> None:
    approval = await one(strict)
    link = await link_for(strict, approval)
    form = form_of(await http.get(link))
    for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain", ""):
        headers = {"Content-Type": kind} if kind else {}
        answer = await http.post(link, content=urlencode(form).encode(), headers=headers)
        assert answer.status_code == 422, kind
    too_long = await http.post(link, data=form | {"reason": "x" * 70_000})
    assert too_long.status_code == 413
    garbled = await http.post(
        link, content=b"nonce=\xff\xfe&%zz", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert garbled.status_code in (403, 422)
    for reason in ("x" * 2001, "a\x00b"):
        answer = await http.post(link, data=form | {"reason": reason})
        assert answer.status_code == 422
        assert "The reason" in read(answer)
        assert form_of(answer)
    assert await status_of(strict, approval) is ApprovalStatus.PENDING
    assert (await http.post(link, data=form | {"reason": "x" * 2000})).status_code == 200


@pytest.mark.proves("D.154")
async def test_what_changed_while_somebody_read_is_shown_and_not_decided(
    http: httpx.AsyncClient, strict: World
) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_THREE)
    approval = await one(strict)
    link = await link_for(strict, approval, to=pat)
    form = form_of(await http.get(link))
    await decide(strict, approval, arguments={"version": "6.6.6"})
    answer = await http.post(link, data=form)
    assert answer.status_code == 412
    assert "It changed while you were reading: look again." in read(answer)
    assert "6.6.6" in answer.text
    fresh = form_of(answer)
    assert fresh["input_hash"] != form["input_hash"]
    assert (await http.post(link, data=fresh)).status_code == 200
    assert await status_of(strict, approval) is ApprovalStatus.APPROVED


async def test_several_people_and_the_page_says_how_many(http: httpx.AsyncClient, strict: World) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_THREE)
    approval = await one(strict)
    first, second = await link_for(strict, approval), await link_for(strict, approval, to=pat)
    voted = read(await press(http, first, reason="one of two"))
    assert "Your approval counts." in voted
    assert "1 so far; it needs 2 votes" in voted
    page = read(await http.get(second))
    assert "Ada approved “one of two”" in page
    assert "You approved this already." in read(await press(http, first))
    assert "Approved." in read(await press(http, second))
    assert await status_of(strict, approval) is ApprovalStatus.APPROVED


async def test_the_other_way_says_who_was_first(http: httpx.AsyncClient, strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, ANY_APPROVER)
    pat = await strict.person(Role.APPROVER, name="Pat")
    approval = await one(strict)
    link = await link_for(strict, approval, Choice.DENIED, to=pat)
    form = form_of(await http.get(link))
    await decide(strict, approval)
    answer = await http.post(link, data=form)
    assert answer.status_code == 409
    assert "Already approved by Ada. Your decision was not recorded." in read(answer)
    assert form_of(answer) == {}


async def test_a_link_whose_time_is_over_says_so(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    approval = await one(strict)
    assert approval.deadline is not None
    link = await link_for(strict, approval)
    form = form_of(await http.get(link))
    for late in (timedelta(0), timedelta(minutes=4), timedelta(minutes=6), timedelta(days=2)):
        await clock.set(approval.deadline + late)
        page = await http.get(link)
        assert page.status_code == 200
        assert "Its time is over." in read(page)
        assert form_of(page) == {}
        answer = await http.post(link, data=form)
        assert answer.status_code in (403, 409)
        assert "Nothing was decided." in read(answer)
    assert await status_of(strict, approval) is ApprovalStatus.PENDING


# Whose link it is --------------------------------------------------------------------------------------------------


async def test_the_page_says_why_its_person_may_not_decide_any_more(http: httpx.AsyncClient, strict: World) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat", clearance=9)
    quinn = await strict.person(Role.APPROVER, name="Quinn", clearance=9)
    await apply_policies(strict.db, strict.admin.actor, CLEARED)
    approval = await one(strict)
    link, other = await link_for(strict, approval, to=pat), await link_for(strict, approval, to=quinn)
    form = form_of(await http.get(link))
    assert pat.actor.user_account_id is not None
    assert quinn.actor.user_account_id is not None
    draft = DelegationDraft(to=quinn.actor.user_account_id, reason="at sea")
    await approvals.delegate(strict.db, pat.actor, approval.id, draft)
    page = read(await http.get(link))
    assert "You handed your part in this to somebody else." in page
    assert "Pat → Quinn “at sea”" in read(await http.get(other))
    assert (await http.post(link, data=form)).status_code == 403
    await orgs.update_member(
        strict.db, strict.admin.actor, quinn.actor.user_account_id, MemberChange(clearance=1), None
    )
    assert "This needs clearance 5; yours is 1." in read(await http.get(other))
    await orgs.update_member(
        strict.db, strict.admin.actor, quinn.actor.user_account_id, MemberChange(active=False), None
    )
    gone = await http.get(other)
    assert gone.status_code == 403
    assert "not an active member any more" in read(gone)
    assert form_of(gone) == {}
    assert await status_of(strict, approval) is ApprovalStatus.PENDING


@pytest.mark.proves("D.155")
async def test_high_risk_shows_nothing_before_its_own_person_is_logged_in(
    http: httpx.AsyncClient, strict: World
) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    await apply_policies(strict.db, strict.admin.actor, CRITICAL)
    approval = await one(strict, "7.7.7")
    link = await link_for(strict, approval, to=pat)
    for cookie in (None, (await Visitor.log_in(http, strict)).cookie, "cortex_session_" + "x" * 43):
        headers = {"Cookie": f"cortex_session={cookie}"} if cookie else {}
        page = await http.get(link, headers=headers)
        assert page.status_code == 403
        assert "Log in first" in read(page)
        assert "cortex member login-link" in page.text
        assert "7.7.7" not in page.text
        assert "ship" not in read(page)
        assert (await http.post(link, data={}, headers=headers)).status_code == 403
    visitor = await Visitor.log_in(http, strict, pat)
    page = await visitor.get(link)
    assert "7.7.7" in page.text
    form = form_of(page)
    without = await http.post(link, data=form)
    assert without.status_code == 403
    assert await status_of(strict, approval) is ApprovalStatus.PENDING
    assert "Approved." in read(await visitor.send(link, form))


KEY = "cortex_key_" + "s" * 43


async def secretive(world: World, approval_of: str = "shipper") -> Approval:
    """A request with what the org hides, what the plane hides, and what anybody may see."""
    change = OrgSettingsChange(redact=("version",))
    await orgs.update_org(world.db, world.admin.actor, OrgChange(settings=change), None)
    _, (approval,) = await waiting(
        world, Shipping(), ship("4.4.4", to=f"eu --password hunter2 {KEY}"), slug=approval_of
    )
    return approval


@pytest.mark.proves("D.126", "D.153")
async def test_without_a_login_the_page_hides_what_the_orgs_messages_hide(
    http: httpx.AsyncClient, strict: World
) -> None:
    bea = await strict.person(Role.ADMIN, name="Bea")
    approval = await secretive(strict)
    link = await link_for(strict, approval)
    theirs = (await Visitor.log_in(http, strict, bea)).cookie
    for cookie in (None, theirs, "cortex_session_" + "x" * 43):
        headers = {"Cookie": f"cortex_session={cookie}"} if cookie else {}
        for page in (await http.get(link, headers=headers), await http.post(link, data={}, headers=headers)):
            for secret in ("4.4.4", "hunter2", "sssss"):
                assert secret not in page.text, secret
            text = read(page)
            assert "hidden by your org’s rules: log in to see it" in text
            assert "exactly what would run" not in text
            assert f'href="/approvals/{approval.id}"' in page.text
            assert form_of(page), "it can still be decided"
    own = await (await Visitor.log_in(http, strict)).get(link)
    for seen in ("4.4.4", "hunter2", KEY, "exactly what would run"):
        assert seen in own.text, seen
    assert "hidden by your org" not in own.text


async def test_an_edit_of_what_is_hidden_is_said_and_not_shown(http: httpx.AsyncClient, strict: World) -> None:
    pat = await strict.person(Role.APPROVER, name="Pat")
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_THREE)
    approval = await secretive(strict)
    assert isinstance(approval.arguments, dict)
    await decide(strict, approval, arguments=approval.arguments | {"version": "6.6.6"}, reason="token=swordfish")
    page = await http.get(await link_for(strict, approval, to=pat))
    for secret in ("4.4.4", "6.6.6", "hunter2", "swordfish"):
        assert secret not in page.text, secret
    assert "Edited: this differs from what the agent sent, in what is hidden here." in read(page)


@pytest.mark.proves("D.153")
async def test_a_link_that_decides_nothing_any_more_shows_the_outcome_and_no_arguments(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 5, 1, 12, tzinfo=UTC))
    decided, late = await one(strict, "5.5.5"), await one(strict, "7.7.7", slug="late")
    links = [await link_for(strict, each) for each in (decided, late)]
    await decide(strict, decided)
    assert late.deadline is not None
    await clock.set(late.deadline + timedelta(days=2))
    visitor = await Visitor.log_in(http, strict)
    for link, said in zip(links, ("Approved by Ada", "Its time is over."), strict=True):
        for page in (await http.get(link), await visitor.get(link), await http.post(link, data={})):
            assert said in read(page)
            assert "ship" in read(page)
            assert "5.5.5" not in page.text
            assert "7.7.7" not in page.text
            assert "I ship." not in page.text
            assert 'href="/approvals/' in page.text


# Bad links ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.152")
async def test_bad_links_are_401_alike_and_nothing_is_written_or_logged_of_them(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    approval = await one(strict)
    bea = await strict.person(Role.ADMIN, name="Bea")
    link = await link_for(strict, approval)
    sig = dict(parse_qsl(urlsplit(link).query))["sig"]
    before = await digests(admin)
    bad = [
        with_query(link, sig=None),
        with_query(link, sig="0" * 64),
        with_query(link, d="denied"),
        with_query(link, t="1"),
        with_query(link, o=account(bea)),
        link + "&d=denied",
        link.replace("/email/", "/fax/"),
        link.replace(str(approval.id), "01936f3a-0000-7000-8000-000000000000"),
        link.replace(str(approval.id), "%00"),
        f"{CALLBACK}/email/{approval.id}",
    ]
    with capture_logs() as logs:
        answers = [await http.request(method, each) for each in bad for method in ("GET", "POST")]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert "This link does not work" in answers[0].text
    assert sig not in repr(logs)
    assert await digests(admin) == before


@pytest.mark.proves("D.158")
async def test_bad_signatures_from_one_address_are_stopped(http: httpx.AsyncClient, strict: World) -> None:
    approval = await one(strict)
    link = await link_for(strict, approval)
    statuses = [(await http.get(with_query(link, sig="0" * 64))).status_code for _ in range(FAILURES + 1)]
    assert statuses == [401] * FAILURES + [429]
    assert (await press(http, link)).status_code == 200, "a link that is right is never shut out"


@pytest.mark.proves("D.156")
async def test_sixteen_presses_and_a_token_are_one_decision(http: httpx.AsyncClient, strict: World) -> None:
    approval = await one(strict)
    link, token = await link_for(strict, approval), await token_for(strict, approval.id, strict.admin.actor)
    form = form_of(await http.get(link))
    pressed = [http.post(link, data=form) for _ in range(12)]
    answers = await asyncio.gather(*pressed, *(by_token(http, token) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    pages = Counter(read(answer).split(" ship: ")[0].split("Cortex Plane ")[-1] for answer in answers[:12])
    results = Counter(answer.json()["result"] for answer in answers[12:])
    assert pages["Approved."] + results["OK"] == 1
    assert pages["Already approved by Ada."] + results["DUPLICATE"] == 15
