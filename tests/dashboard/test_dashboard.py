"""The dashboard without a browser: logging in, cookies, forms from elsewhere, headers, errors as pages."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import httpx
import pytest

from cortex_plane.dashboard import inbox
from cortex_plane.dashboard.pages import ASSETS, address
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model.events import Event, EventType
from cortex_plane.sessions.verbs.events import Subscription
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import logins, orgs
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.sockets import served
from tests.fixtures.visitors import Visitor, asked, fields_of, open_shop

PAGES = ("/", "/jobs", f"/jobs/{new_id()}", f"/approvals/{new_id()}", "/live", "/atlases", "/atlases/none")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HTML = {"Accept": "text/html"}


async def link_of(world: World) -> str:
    return (await logins.issue_own_login_link(world.db, world.admin.actor)).url_path


# Logging in ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.70")
async def test_a_get_shows_a_button_and_a_post_logs_in(http: httpx.AsyncClient, world: World) -> None:
    link = await link_of(world)
    for _ in range(3):  # chats and mail scanners fetch links ahead of people
        shown = await http.get(link)
        assert shown.status_code == 200
        assert "set-cookie" not in shown.headers
        assert f'<form method="post" action="{link}">' in shown.text
        assert "logs you in as <strong>Ada</strong>" in shown.text
    assert (await http.head(link)).status_code in (200, 405)
    entered = await http.post(link)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert (await http.get("/")).status_code == 200
    for again in (await http.post(link), await http.get(link)):
        assert again.status_code == 401
        assert "does not work" in again.text
        assert "cortex member login-link" in again.text
        assert "set-cookie" not in again.headers


@pytest.mark.proves("D.70")
async def test_of_two_posts_one_logs_in(http: httpx.AsyncClient, world: World) -> None:
    link = await link_of(world)
    answers = await asyncio.gather(*(http.post(link) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [303, 401, 401, 401, 401]


@pytest.mark.proves("D.70")
async def test_used_and_invented_links_look_alike(http: httpx.AsyncClient, world: World) -> None:
    used = await link_of(world)
    await http.post(used)
    http.cookies.clear()
    invented = "/login/cortex_login_" + "x" * 43
    for method in ("GET", "POST"):
        one, other = await http.request(method, used), await http.request(method, invented)
        assert (one.status_code, one.text) == (other.status_code, other.text) or _same(one.text, other.text)
    metrics = (await http.get("/metrics", headers=world.admin.headers)).text
    assert re.search(r'login_failures_total\{reason="login_link_invalid"\} 2\.0', metrics)


def _same(one: str, other: str) -> bool:
    return re.sub(r'data-now="[^"]*"', "", one) == re.sub(r'data-now="[^"]*"', "", other)


@pytest.mark.proves("D.72")
async def test_the_cookie_is_for_this_site_and_not_for_scripts(http: httpx.AsyncClient, world: World) -> None:
    cookie = (await http.post(await link_of(world))).headers["set-cookie"]
    name, *flags = cookie.split("; ")
    assert re.fullmatch(r"cortex_session=cortex_session_[A-Za-z0-9_-]{43}", name)
    assert {flag.lower() for flag in flags} == {"httponly", "path=/", "samesite=lax", "max-age=604800"}
    https = httpx.AsyncClient(transport=http._transport, base_url="https://plane")
    secure = (await https.post(await link_of(world))).headers["set-cookie"]
    assert "Secure" in secure.split("; ")
    name, *flags = secure.split("; ")
    assert re.fullmatch(r"__Host-cortex_session=cortex_session_[A-Za-z0-9_-]{43}", name)
    assert {flag.lower().partition("=")[0] for flag in flags} == {
        "httponly", "path", "samesite", "max-age", "secure",
    }, "a name with this prefix is taken without a domain only"  # fmt: skip


@pytest.mark.proves("D.72", "D.596")
async def test_over_tls_only_the_cookie_of_this_very_host_counts(http: httpx.AsyncClient, world: World) -> None:
    """A neighbour under the same domain can set `cortex_session` for all of it, and not `__Host-cortex_session`."""
    visitor = await Visitor.log_in(http, world)
    https = httpx.AsyncClient(transport=http._transport, base_url="https://plane")
    tossed = await https.get("/", headers={"Cookie": f"cortex_session={visitor.cookie}"})
    assert tossed.status_code == 401
    own = await https.get("/", headers={"Cookie": f"__Host-cortex_session={visitor.cookie}"})
    assert own.status_code == 200
    plain = await http.get("/", headers={"Cookie": f"__Host-cortex_session={visitor.cookie}"})
    assert plain.status_code == 401
    ended = await https.get("/", headers={"Cookie": "__Host-cortex_session=cortex_session_" + "x" * 43})
    assert '__Host-cortex_session=""' in ended.headers["set-cookie"]
    assert "Secure" in ended.headers["set-cookie"].split("; ")


@pytest.mark.proves("D.72")
async def test_logging_out_ends_the_session(http: httpx.AsyncClient, world: World) -> None:
    visitor = await Visitor.log_in(http, world)
    page = await visitor.get("/")
    assert (await visitor.get("/logout")).status_code == 405
    left = await visitor.submit(page, "/logout")
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    assert 'cortex_session=""' in left.headers["set-cookie"]
    assert "Max-Age=0" in left.headers["set-cookie"]
    for path in PAGES:
        assert (await visitor.get(path)).status_code == 401


async def test_without_a_session_every_page_says_how_to_log_in(http: httpx.AsyncClient, world: World) -> None:
    for path in PAGES:
        answer = await http.get(path)
        assert answer.status_code == 401
        assert "cortex member login-link" in answer.text
        assert "your session has ended" not in answer.text
        kept = await http.get(path, headers={"Cookie": "cortex_session=cortex_session_" + "x" * 43})
        assert "your session has ended" in kept.text
        assert 'cortex_session=""' in kept.headers["set-cookie"]
    part = await http.get("/inbox/live", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["HX-Refresh"]) == (204, "true")


async def test_a_key_is_no_cookie_and_a_cookie_no_key(http: httpx.AsyncClient, world: World) -> None:
    visitor = await Visitor.log_in(http, world)
    assert (await http.get("/", headers=world.admin.headers)).status_code == 401
    assert (await visitor.get("/v1/me")).json()["code"] == "key_missing"
    bearer = await http.get("/v1/me", headers={"Authorization": f"Bearer {visitor.cookie}"})
    assert bearer.json()["code"] == "key_unknown"


async def test_a_deactivated_member_is_out_at_once(http: httpx.AsyncClient, world: World) -> None:
    person = await world.person(Role.APPROVER)
    visitor = await Visitor.log_in(http, world, person)
    assert (await visitor.get("/")).status_code == 200
    id = person.actor.user_account_id
    assert id is not None
    await orgs.update_member(world.db, world.admin.actor, id, MemberChange(active=False), None)
    assert (await visitor.get("/")).status_code == 401


async def test_a_login_over_a_session_ends_it(http: httpx.AsyncClient, world: World) -> None:
    old = await Visitor.log_in(http, world)
    grace = await world.person(Role.APPROVER, name="Grace")
    link = (await logins.issue_own_login_link(world.db, grace.actor)).url_path
    assert (await old.send(link, {})).status_code == 303
    assert (await old.get("/")).status_code == 401


@pytest.mark.proves("D.70")
async def test_a_tab_that_was_left_open_does_not_keep_its_session(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 1, 5, 9, tzinfo=UTC))
    visitor = await Visitor.log_in(http, world)
    looks = ("/inbox/live", "/jobs/live", f"/approvals/{new_id()}/live", f"/jobs/{new_id()}/live", "/live?job=x")
    for path in looks:
        await clock.advance(timedelta(hours=2))
        assert (await visitor.get(path)).status_code != 401
    await clock.advance(timedelta(hours=2))
    assert (await visitor.get("/")).status_code == 401


# Forms from elsewhere ------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.73")
async def test_a_form_needs_the_token_of_its_own_session(http: httpx.AsyncClient, world: World) -> None:
    visitor, other = await Visitor.log_in(http, world), await Visitor.log_in(http, world)
    mine = fields_of((await visitor.get("/")).text, "/logout")["form_token"]
    theirs = fields_of((await other.get("/")).text, "/logout")["form_token"]
    assert mine != theirs
    for fields in ({}, {"form_token": ""}, {"form_token": theirs}, {"form_token": mine[:-1]}, {"form_token": "é"}):
        refused = await visitor.send("/logout", fields)
        assert refused.status_code == 403, fields
        assert "nothing was done" in refused.text
    assert (await visitor.get("/")).status_code == 200
    assert (await visitor.send("/logout", {"form_token": mine})).status_code == 303


@pytest.mark.proves("D.73")
@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://plane.evil.example"}, False),
        ({"Origin": "http://["}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, True),
        ({"Origin": "http://plane"}, True),
        ({}, True),
    ],
    ids=str,
)
async def test_a_form_comes_from_this_very_site(
    http: httpx.AsyncClient, world: World, headers: dict[str, str], taken: bool
) -> None:
    link = await link_of(world)
    assert (await http.post(link, headers=headers)).status_code == (303 if taken else 403)
    http.cookies.clear()
    visitor = await Visitor.log_in(http, world)
    fields = fields_of((await visitor.get("/")).text, "/logout")
    assert (await visitor.send("/logout", fields, **headers)).status_code == (303 if taken else 403)


@pytest.mark.parametrize("body", [b"\xff\xfe=1", b"&".join(b"a=1" for _ in range(60)), b"%zz=%ff%fe"])
async def test_a_form_that_cannot_be_read_changes_nothing(http: httpx.AsyncClient, world: World, body: bytes) -> None:
    visitor = await Visitor.log_in(http, world)
    kind = {"Cookie": f"cortex_session={visitor.cookie}", "Content-Type": "application/x-www-form-urlencoded"}
    answer = await http.post("/logout", content=body, headers=kind)
    assert answer.status_code in (403, 422)
    assert (await visitor.get("/")).status_code == 200


# Headers, files, errors ----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.79")
async def test_every_page_has_the_strict_policy_once(http: httpx.AsyncClient, world: World) -> None:
    visitor = await Visitor.log_in(http, world)
    answers = [
        await visitor.get("/"),
        await visitor.get("/jobs"),
        await visitor.get(f"/jobs/{new_id()}"),
        await visitor.get("/inbox/live"),
        await visitor.get("/atlases"),
        await visitor.get("/atlases/none"),
        await http.get("/"),
        await http.get("/login"),
        await http.get(await link_of(world)),
        await http.post("/login/nothing"),
        await http.get("/nowhere", headers=HTML),
        await visitor.send("/logout", {}),
    ]
    for answer in answers:
        assert answer.headers.get_list("content-security-policy") == [POLICY], answer.url
        assert answer.headers.get_list("referrer-policy") == ["same-origin"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["vary"] == "Cookie"


@pytest.mark.proves("D.79")
async def test_files_are_named_by_their_content_and_kept(http: httpx.AsyncClient, world: World) -> None:
    for name, asset in ASSETS.items():
        answer = await http.get(address(name))
        assert (answer.status_code, answer.content) == (200, asset.content)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"] == asset.media_type
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        known = await http.get(address(name), headers={"If-None-Match": answer.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        assert (await http.get(f"/assets/{name}?v=old")).headers["cache-control"] == "no-cache"
    for wrong in ("nothing.js", "VENDORED.md", "..%2fpages.py", "%2e%2e/pages.py", "vendor%2fhtmx-2.0.11.min.js"):
        assert (await http.get(f"/assets/{wrong}")).status_code == 404


async def test_an_error_is_a_page_for_browsers_and_a_problem_for_programs(
    http: httpx.AsyncClient, world: World
) -> None:
    page = await http.get("/nowhere", headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "To the inbox" in page.text
    for path, headers in (("/nowhere", {}), ("/v1/nowhere", HTML)):
        assert (await http.get(path, headers=headers)).json()["code"] == "route_not_found"
    visitor = await Visitor.log_in(http, world)
    for path in (
        f"/jobs/{new_id()}",
        "/jobs/x",
        f"/approvals/{new_id()}",
        "/approvals/x",
        f"/approvals/{new_id()}/edit",
    ):
        missing = await visitor.get(path)
        assert missing.status_code == 404
        assert "There is no such" in missing.text
    assert (await visitor.get("/jobs?status=strange")).status_code == 422
    assert (await visitor.get("/jobs?cursor=strange")).status_code == 422


async def test_pages_are_not_in_the_document(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert not any(path.startswith(("/login", "/approvals", "/jobs", "/assets")) or path == "/" for path in paths)


async def test_metrics_name_routes_and_no_tokens(http: httpx.AsyncClient, world: World) -> None:
    visitor = await Visitor.log_in(http, world)
    await visitor.get("/")
    await http.get(address("app.js"))
    text = (await http.get("/metrics", headers=world.admin.headers)).text
    for route in ("/login/{token}", "/", "/assets/{name}"):
        assert f'route="{route}"' in text
    assert "cortex_login_" not in text


async def test_the_empty_inbox_teaches_how_to_begin(http: httpx.AsyncClient, world: World) -> None:
    visitor = await Visitor.log_in(http, world)
    page = await visitor.get("/")
    assert "All clear" in page.text
    # A plane on a database of its own has no demos.
    jobs = await visitor.get("/jobs")
    for text in (page.text, jobs.text):
        assert ("cortex job submit AGENT" in text, "demo" in text) == (True, False)
    assert "Ada" in page.text
    seen = re.search(r'name="seen" value="(\w+)"', page.text)
    assert seen
    part = await visitor.get(f"/inbox/live?seen={seen.group(1)}&shown_at=")
    assert (part.status_code, part.content) == (204, b"")
    for strange in ("seen=x", "seen=x&shown_at=yesterday", "shown_at=2026-01-01"):
        assert "All clear" in (await visitor.get(f"/inbox/live?{strange}")).text


# Live updates --------------------------------------------------------------------------------------------------------


async def hints(visitor: Visitor, url: str, path: str, until: int) -> int:
    """How many hints a stream gives, up to so many."""
    heard = 0
    cookies = {"cortex_session": visitor.cookie}
    async with (
        httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False, timeout=20) as client,
        client.stream("GET", path) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        async for line in stream.aiter_lines():
            heard += line == "event: changed"
            if heard >= until:
                break
    return heard


@pytest.mark.proves("D.74")
async def test_a_stream_tells_that_something_changed_and_nothing_else(strict: World) -> None:
    async with served(strict.db) as (url, _, _), httpx.AsyncClient(base_url=url, trust_env=False) as http:
        visitor = await Visitor.log_in(http, strict)
        async with open_shop(strict):
            listening = asyncio.create_task(hints(visitor, url, "/live", 1))
            request = await asked(strict)
            assert await asyncio.wait_for(listening, 20) == 1
            job = asyncio.create_task(hints(visitor, url, f"/live?job={request.job_id}", 1))
            await visitor.decide(request.id, "approved")
            assert await asyncio.wait_for(job, 20) == 1
        for path, status in (("/live?job=x", 404), (f"/live?job={new_id()}", 404)):
            assert (await visitor.get(path)).status_code == status


async def test_words_that_a_model_is_still_saying_wake_no_page() -> None:
    subscription = Subscription()
    stream = inbox._hints(cast("Any", None), nullcontext(subscription))
    await anext(stream)
    hint = asyncio.ensure_future(anext(stream))
    subscription.give([event_of(EventType.TEXT_CHUNK)])
    for _ in range(20):
        await asyncio.sleep(0)
    assert not hint.done()
    subscription.give([event_of(EventType.TEXT_CHUNK), event_of(EventType.STATUS)])
    assert await asyncio.wait_for(hint, 5) == b"event: changed\ndata: \n\n"


def event_of(kind: EventType) -> Event:
    return Event(seq=1, type=kind, job_id=None, data={}, created_at=datetime(2026, 1, 5, tzinfo=UTC))
