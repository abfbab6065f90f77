"""The page behind the link in an invitation: looking changes nothing, one press proves the address and logs in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from cortex_plane.channels.email import EmailChannel
from cortex_plane.channels.mail_servers import SmtpServer
from cortex_plane.http.app import Api
from cortex_plane.main.reach import SINK_SENDER, mail_sink
from cortex_plane.tenancy.model.identities import AddressDraft, InvitationDraft, nonce
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections, logins
from cortex_plane.worker.notifier import Notifier
from tests.channels.behaviour import ASK, drain
from tests.conftest import _application
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.mail_servers import MailServer, mail_server
from tests.fixtures.people import World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.visitors import Visitor, asked, fields_of, open_shop
from tests.tenancy.test_invitations import BEA, code_for, invite, mapping_of


@pytest.fixture
def app() -> Iterator[Api]:
    """The application behind ``http``; what a test sets on it is gone afterwards."""
    made = _application()
    yield made
    for name in ("mailing", "mail_folder"):
        made.state._state.pop(name, None)


async def link_of(world: World) -> str:
    invited = await invite(world, roles=[Role.APPROVER])
    return f"/verify/{await code_for(world, invited.mapping.id)}"


@pytest.mark.proves("D.130")
async def test_a_person_opens_the_link_presses_the_button_and_is_in_the_inbox(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    path = await link_of(world)
    before = await digests(admin)
    for method in ("HEAD", "GET", "GET"):
        page = await http.request(method, path)
        assert page.status_code == 200
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "same-origin"
        assert "script-src" not in page.headers["content-security-policy"]
        assert "set-cookie" not in page.headers
    assert await digests(admin) == before
    assert "<script" not in page.text
    assert all(said in page.text for said in ("Bea", "Acme", BEA, "Ada"))
    answer = await http.post(path, data=fields_of(page.text, path))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    visitor = Visitor(http, answer.cookies["cortex_session"])
    http.cookies.clear()
    assert "Bea" in (await visitor.get("/")).text
    again = await http.post(path, data=fields_of(page.text, path))
    assert again.status_code == 401
    assert "does not work" in again.text
    assert "set-cookie" not in again.headers


@pytest.mark.proves("D.131")
async def test_a_press_without_a_page_does_nothing(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    path = await link_of(world)
    code = path.removeprefix("/verify/")
    old = nonce(code, datetime.now(UTC) - timedelta(hours=2), "mark")
    another = await link_of_another(world)
    other = fields_of((await http.get(another)).text, another)["nonce"]
    before = await digests(admin)
    for fields in ({}, {"nonce": ""}, {"nonce": old}, {"nonce": other}, {"nonce": "1.2.3"}, {"nonce": "é"}):
        answer = await http.post(path, data=fields)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    good = fields_of((await http.get(path)).text, path)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        foreign = await http.post(path, data=good, headers=headers)
        assert foreign.status_code == 403
    assert await digests(admin) == before
    retry = fields_of(answer.text, path)
    assert (await http.post(path, data=retry)).status_code == 303, "the page that refused it asks again"


async def link_of_another(world: World) -> str:
    invited = await invite(world, "cleo@example.com", "Cleo")
    return f"/verify/{await code_for(world, invited.mapping.id)}"


@pytest.mark.proves("D.131")
@pytest.mark.parametrize("wrong", ["x", "cortex_verify_" + "a" * 43, "%00", "%E2%80%AE", "a" * 5000])
async def test_a_wrong_link_gets_one_clear_page(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, wrong: str
) -> None:
    await link_of(world)
    before = await digests(admin)
    for method in ("GET", "HEAD", "POST"):
        answer = await http.request(method, f"/verify/{wrong}")
        assert answer.status_code == 401
    assert "does not work" in answer.text
    assert "cortex member invite --resend" in answer.text
    assert await digests(admin) == before


async def test_whoever_confirms_in_somebody_elses_browser_is_logged_in_as_themselves(
    http: httpx.AsyncClient, world: World
) -> None:
    ada = await Visitor.log_in(http, world)
    path = await link_of(world)
    fields = fields_of((await ada.get(path)).text, path)
    answer = await ada.send(path, fields)
    assert answer.status_code == 303
    bea = Visitor(http, answer.cookies["cortex_session"])
    http.cookies.clear()
    assert (await bea.get("/")).status_code == 200
    assert (await ada.get("/")).status_code == 401, "the session before it is over"


@pytest.mark.proves("D.133")
async def test_an_added_address_asks_its_person_to_log_in(http: httpx.AsyncClient, world: World) -> None:
    person = await world.person(Role.APPROVER, name="Grace")
    claimed = await connections.add_address(
        world.db, person.actor, AddressDraft(email="grace@example.com"), mailing=True
    )
    path = f"/verify/{await code_for(world, claimed.id, 'address')}"
    for page in (await http.get(path), await (await Visitor.log_in(http, world)).get(path)):
        assert page.status_code == 200
        assert "<form" not in page.text
        assert "cortex member login-link" in page.text
    grace = await Visitor.log_in(http, world, person)
    page = await grace.get(path)
    stranger = await http.post(path, data=fields_of(page.text, path))
    assert stranger.status_code == 403
    answer = await grace.submit(page, path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "set-cookie" not in answer.headers
    assert (await mapping_of(world, claimed.user_account_id)).verified_at is not None


async def test_names_of_strangers_are_text(http: httpx.AsyncClient, world: World) -> None:
    name = "".join(c for c in HOSTILE if c.isprintable() or ord(c) > 0x9F)[:190]
    actor = replace(world.admin.actor, name=name)
    draft = InvitationDraft(email=BEA, display_name=name)
    invited = await connections.invite(world.db, actor, draft, mailing=True)
    page = await http.get(f"/verify/{await code_for(world, invited.mapping.id)}")
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text
    assert "U+202E" in page.text


# Scanners ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.131")
async def test_whoever_fetches_every_link_of_every_mail_changes_nothing(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    """Every mail that there is (a request, a reminder, an end, an invitation), and every link in it, with GET and HEAD."""
    async with mail_server() as server, open_shop(strict):
        channel = EmailChannel(server.server, "c@plane.example")
        notifier = Notifier(strict.db, [channel], "http://plane")
        await invite(strict, roles=[Role.APPROVER])
        await apply_policies(strict.db, strict.admin.actor, ASK)
        await drain(notifier)
        (path,) = _paths(server)
        page = await http.get(path)
        assert (await http.post(path, data=fields_of(page.text, path))).status_code == 303
        http.cookies.clear()
        await invite(strict, "cleo@example.com", "Cleo")
        await asked(strict)
        await drain(notifier)
        assert sorted(got.recipient for got in server.got) == [BEA, BEA, "cleo@example.com"]
        links = {url for got in server.got for url in got.urls if "/v1/approvals/decide" not in url}
        assert len(links) == 6, "two invitations, a card, yes, no and an answer"
        before = await digests(admin)
        for link in sorted(links):
            parts = urlsplit(link)
            assert link.isascii()
            assert not parts.fragment
            for method in ("HEAD", "GET", "HEAD", "GET"):
                answer = await http.request(method, f"{parts.path}?{parts.query}")
                assert answer.status_code < 500
                assert "set-cookie" not in answer.headers
        assert await digests(admin) == before
        await channel.close()


def _paths(server: MailServer) -> list[str]:
    return [urlsplit(url).path for got in server.got for url in got.urls]


# Mails that are kept --------------------------------------------------------------------------------------------------


async def sent_to_sink(world: World, folder: Path) -> None:
    async with mail_sink(folder) as sink:
        channel = EmailChannel(SmtpServer.parse(sink.smtp_url), SINK_SENDER)
        await drain(Notifier(world.db, [channel], "http://plane"))
        await channel.close()


@pytest.mark.proves("D.130")
async def test_mails_of_make_up_are_read_in_the_browser_by_admins_of_their_org(
    http: httpx.AsyncClient, world: World, other: World, app: Api, tmp_path: Path
) -> None:
    await invite(world, name="Béa <b>")
    await invite(other, "zoe@example.com", "Zoe")
    await sent_to_sink(world, tmp_path)
    folder = tmp_path / "mail"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len([*(folder / "new").iterdir()]) == 2
    ada = await Visitor.log_in(http, world)
    assert (await ada.get("/mail")).status_code == 404
    assert 'href="/mail"' not in (await ada.get("/")).text
    app.state.mail_folder = folder
    assert 'href="/mail"' in (await ada.get("/")).text
    listed = (await ada.get("/mail")).text
    assert "Confirm your address for Acme" in listed
    assert "zoe@example.com" not in listed
    (own,) = [path for path in (folder / "new").iterdir() if b"bea@example.com" in path.read_bytes()]
    (foreign,) = [path for path in (folder / "new").iterdir() if path != own]
    page = await ada.get(f"/mail/{own.name}")
    assert page.status_code == 200
    assert f'src="/mail/{own.name}/html"' in page.text
    assert "sandbox=" in page.text
    assert "allow-scripts" not in page.text
    assert "http://plane/verify/cortex_verify_" in page.text, "the text part is there too"
    framed = await ada.get(f"/mail/{own.name}/html")
    policy = framed.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "allow-scripts" not in policy
    assert '<base target="_blank">' in framed.text
    assert "verify/cortex_verify_" in framed.text
    for path in (foreign.name, "%2e%2e", "%2e%2e%2fmaster.key", "x", "%00"):
        for suffix in ("", "/html"):
            assert (await ada.get(f"/mail/{path}{suffix}")).status_code == 404
    operator = await Visitor.log_in(http, world, await world.person(Role.OPERATOR))
    assert (await operator.get("/mail")).status_code == 403
    assert (await operator.get(f"/mail/{own.name}/html")).status_code == 403
    assert 'href="/mail"' not in (await operator.get("/")).text
    assert (await http.get("/mail")).status_code == 401
    zoe = await Visitor.log_in(http, other)
    assert (await zoe.get(f"/mail/{own.name}")).status_code == 404


async def test_the_session_of_an_invited_person_ends_like_any_other(http: httpx.AsyncClient, world: World) -> None:
    path = await link_of(world)
    secret = await connections.verify_address(world.db, path.removeprefix("/verify/"), None)
    assert secret is not None
    actor = await logins.authenticate_session(world.db, secret)
    await logins.log_out(world.db, actor)
    assert (await Visitor(http, secret).get("/")).status_code == 401
