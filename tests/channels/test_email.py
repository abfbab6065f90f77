"""The mails themselves: what stands in them, how they hang together, and what a hostile text cannot do to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Choice
from cortex_plane.channels.email import EmailChannel
from cortex_plane.channels.mail_servers import SmtpServer
from cortex_plane.notify.model.notifications import (
    Alert,
    Card,
    CardVote,
    Invitation,
    Occasion,
    Outgoing,
    Sent,
    Target,
    TryAgain,
    Undeliverable,
)
from cortex_plane.policies.model.policies import Template
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.mail_servers import Got, MailServer, mail_server

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
ID, ORG = UUID(int=7), UUID(int=8)
APPROVE = "https://plane.example/api/v1/approvals/callback/email/1?t=1&d=approved&sig=a"
CARD = Card(
    approval_id=UUID(int=1), kind=ApprovalKind.CALL, status=ApprovalStatus.PENDING, version=1, input_hash="a" * 64,
    occasion=Occasion.REQUESTED, org="Acme", agent="Deployer", tool="ship", target="production", risk="high",
    template=Template.DEV_ONLY,
    action="Ship 1.0 to production", details={"window": "tonight", "steps": [1, 2]}, arguments='{\n  "version": "1.0"\n}',
    truncated=False, original_arguments=None, invocations=1, agent_says="It is tested.", asked_for="Ship it, please",
    question=None, rule="org/ship", if_nobody="If nobody decides by then, the call is not sent and the job fails.", policy_version="3", required_clearance=2, deciders=("Bea", "Cleo"), votes=(),
    votes_needed=2, delegations=(("Ann", "Bea", "on leave"),), escalation_level=0, requested_at=NOW,
    deadline=NOW + timedelta(hours=3, minutes=20), resolved_at=None, resolved_by=None, resolution_reason=None,
    url="https://plane.example/approvals/1", approve_url=APPROVE, deny_url=APPROVE.replace("approved", "denied"),
    token="cortex_apr_1_" + "t" * 43,
)  # fmt: skip
APPROVED = replace(
    CARD, status=ApprovalStatus.APPROVED, occasion=Occasion.RESOLVED, resolved_by="Bea", resolution_reason="fine",
    resolved_at=NOW, approve_url=None, deny_url=None, token=None,
)  # fmt: skip


def outgoing(content: Card | Invitation | Alert = CARD, *, version: int = 1, **more: Any) -> Outgoing:
    target = Target(
        connection_id=UUID(int=9),
        connection="email",
        config={},
        secrets={},
        address=more.pop("address", "bea@example.com"),
        member=more.pop("member", "Bea"),
    )
    return Outgoing(
        id=ID, org_id=ORG, version=version, target=target, content=content, earlier=more.pop("earlier", None),
        timestamp=NOW, **more,
    )  # fmt: skip


def mailing(server: MailServer, sender: str = "Cortex <cortex@plane.example>", **more: Any) -> EmailChannel:
    return EmailChannel(server.server, sender, **more)


async def mailed(content: Card | Invitation | Alert = CARD, **more: Any) -> Got:
    async with mail_server() as server:
        channel = mailing(server)
        await channel.send(outgoing(content, **more))
        await channel.close()
        (got,) = server.got
        return got


class Markup(HTMLParser):
    """What a mail program would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    @property
    def links(self) -> list[str]:
        return [value or "" for _, name, value in self.attributes if name in ("href", "src")]


@pytest.mark.proves("D.138")
async def test_a_mail_is_a_whole_card_in_text_and_in_html() -> None:
    got = await mailed()
    message = got.message
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert message["Subject"] == "Approval needed: ship production"
    assert message["From"] == "Cortex <cortex@plane.example>"
    assert (got.sender, got.recipient) == ("cortex@plane.example", "bea@example.com")
    assert message["Message-ID"] == f"<{ID}.1@plane.example>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["X-Cortex-Org"] == str(ORG)
    assert parsedate_to_datetime(str(message["Date"])) == NOW
    assert message["In-Reply-To"] is None
    in_order = [
        "HIGH RISK", "ship", "production", '"version": "1.0"', "Deployer", "Ship it, please", "The agent says", "It is tested.",
        "tonight", "org/ship", "0 of 2", "Ann", "Bea, Cleo", "2026-01-05 12:20:00 UTC", "in 3 h 20 min", APPROVE,
    ]  # fmt: skip
    places = [got.text.index(each) for each in in_order]
    assert places == sorted(places), "the order in which a reviewer needs it"
    assert got.text.index("they may mislead") < got.text.index("It is tested.")
    for part in (got.text, got.html):
        for said in ("2026-01-05 12:20:00 UTC", "3 h 20 min", "cortex_apr_1_", "may mislead", "on leave"):
            assert said in part
    assert got.raw.isascii(), "any server can carry it"
    assert max(map(len, got.raw.split(b"\r\n"))) <= 998


@pytest.mark.proves("D.138")
@pytest.mark.parametrize(("change", "whole"), [({}, True), ({"truncated": True}, False), ({"redacted": True}, False)])
async def test_a_mail_says_that_it_is_the_whole_only_where_it_is(change: dict[str, Any], whole: bool) -> None:
    got = await mailed(replace(CARD, token=None, **change))
    for body in (got.text, got.html):
        assert ("exactly as they would be sent" in body) is whole
        assert ("Arguments, in part" in body) is not whole
        assert ("hidden by your org" in body) is ("redacted" in change)


@pytest.mark.proves("D.138")
async def test_the_html_runs_nothing_loads_nothing_and_links_only_to_the_plane() -> None:
    for content in (CARD, APPROVED, Invitation(org="A", invited_by="Ada", url="https://plane.example/verify/x",
                                               expires_at=NOW)):  # fmt: skip
        markup = Markup((await mailed(content)).html)
        banned = {"script", "img", "link", "style", "iframe", "object", "form", "input", "svg", "video", "base"}
        assert banned.isdisjoint(markup.tags)
        assert not [name for _, name, _ in markup.attributes if name.startswith("on")]
        assert all(link.startswith("https://plane.example/") for link in markup.links)
        assert all(link.isascii() and "#" not in link for link in markup.links)
        assert not [value for _, name, value in markup.attributes if name == "style" and "url(" in str(value)]
        assert ("html", "lang", "en") in markup.attributes
        assert markup.tags.count("h1") == 1


async def test_tool_and_version_stand_once() -> None:
    got = await mailed(replace(CARD, target=CARD.tool, rule="org:sql@2.1", policy_version="2.1"))
    assert got.message["Subject"] == "Approval needed: ship"
    assert "Rule: org:sql@2.1 (dev" in got.text
    assert "policies 2.1" not in got.text + got.html
    other = await mailed(replace(CARD, rule="default:owner", policy_version="2.1"))
    assert "Rule: default:owner (policies 2.1, " in other.text


@pytest.mark.proves("D.138")
async def test_what_follows_is_in_the_thread_of_the_first() -> None:
    async with mail_server() as server:
        channel = mailing(server)
        shown: Any = {}
        earlier = None
        for version, card in enumerate((CARD, replace(CARD, occasion=Occasion.REMINDED), APPROVED), 1):
            assert channel.concerns(card, shown)
            sent: Sent = await channel.send(outgoing(card, version=version, earlier=earlier, shown=shown))
            earlier, shown = sent.message_ref, sent.shown
        await channel.close()
    first, second, third = [got.message for got in server.got]
    assert first["References"] is None
    assert second["In-Reply-To"] == first["Message-ID"]
    assert third["In-Reply-To"] == second["Message-ID"]
    assert third["References"] == f"{first['Message-ID']} {second['Message-ID']}"
    assert [str(each["Subject"]).partition(":")[0] for each in (first, second, third)] == [
        "Approval needed", "Reminder, approval needed", "Approved by Bea",
    ]  # fmt: skip
    assert server.connections == 1, "one conversation for all"


@pytest.mark.proves("D.138")
@pytest.mark.parametrize(
    ("change", "earlier", "heading"),
    [
        ({"occasion": Occasion.REQUESTED}, None, "Approval needed"),
        ({"occasion": Occasion.ESCALATED, "escalation_level": 1}, None, "Escalated to you"),
        ({"occasion": Occasion.ESCALATED, "escalation_level": 1}, "<a@b>", "Escalated further, approval needed"),
        ({"occasion": Occasion.DELEGATED}, None, "Delegated to you"),
        ({"occasion": Occasion.REMINDED}, "<a@b>", "Reminder, approval needed"),
        ({"occasion": Occasion.CHANGED, "version": 2}, "<a@b>", "Changed, approval needed"),
        ({"status": ApprovalStatus.DENIED, "resolved_by": "Bea"}, "<a@b>", "Denied by Bea"),
        ({"status": ApprovalStatus.EXPIRED}, "<a@b>", "Expired"),
        ({"status": ApprovalStatus.CANCELLED}, "<a@b>", "Cancelled"),
        ({"kind": ApprovalKind.UNCERTAIN_EFFECT, "deadline": None, "question": "Is it there?"}, None, "Did it happen?"),
        ({"kind": ApprovalKind.UNCERTAIN_EFFECT, "status": ApprovalStatus.APPROVED, "resolved_by": "Bea"}, "<a@b>",
         "Answered by Bea"),
    ],
)  # fmt: skip
async def test_the_subject_says_why(change: dict[str, Any], earlier: str | None, heading: str) -> None:
    got = await mailed(replace(CARD, **change), earlier=earlier)
    assert got.message["Subject"] == f"{heading}: ship production"
    assert got.text.startswith(heading)
    if change.get("question"):
        assert "Is it there?" in got.text
        assert "nothing expires" in got.text


@pytest.mark.proves("D.399")
async def test_the_questions_of_a_gate_are_mailed_above_the_arguments() -> None:
    asked = "By approving you pass the gate money (Money):\n- Is <b>it</b> owed?"
    got = await mailed(replace(CARD, rule="gate:demo.support/money", question=asked))
    assert got.text.index("Is <b>it</b> owed?") < got.text.index("Arguments, ")
    assert "Is &lt;b&gt;it&lt;/b&gt; owed?" in got.html
    assert "nothing expires" not in got.text


@pytest.mark.proves("D.744")
async def test_a_question_is_mailed_with_a_link_to_answer_and_none_to_approve() -> None:
    respond, deny = APPROVE.replace("d=approved", "d=responded"), APPROVE.replace("d=approved", "d=denied")
    card = replace(
        CARD, tool="plane.ask_person", is_question=True, question="Which plan?\u202e",
        if_nobody="If nobody answers by then, the agent is told so.", approve_url=None, deny_url=deny,
        respond_url=respond,
    )  # fmt: skip
    got = await mailed(card)
    assert got.message["Subject"].startswith("An agent asks you: ")
    for body in (got.text, got.html):
        assert "Which plan?⟨U+202E⟩" in body
        assert "Answer" in body
        assert "Decline" in body
        assert "If nobody answers by then" in body
        assert '"responded"' in body
    assert respond in got.text
    assert "d=approved" not in got.text
    over = await mailed(replace(card, status=ApprovalStatus.RESPONDED, resolved_by="Bea", answer="pro\u200b"))
    assert over.message["Subject"].startswith("Answered by Bea: ")
    for body in (over.text, over.html):
        assert "pro⟨U+200B⟩" in body
    late = await mailed(replace(card, status=ApprovalStatus.EXPIRED, answer="basic"))
    assert "because nobody answered in time" in late.text
    assert "basic" in late.text


@pytest.mark.proves("D.138")
def test_only_what_a_person_must_know_is_mailed() -> None:
    channel = EmailChannel(SmtpServer.parse("smtp://127.0.0.1:1"), "c@d")
    shown = {"first": "<a@b>", "status": "pending", "version": 1, "input_hash": "a" * 64, "level": 0}
    vote = CardVote(member="Cleo", decision=Choice.APPROVED, reason=None)
    voted = replace(CARD, occasion=Occasion.CHANGED, votes=(vote,))
    assert channel.concerns(CARD, {})
    assert not channel.concerns(CARD, shown)
    assert not channel.concerns(voted, shown), "a vote alone is not worth a mail"
    assert not channel.concerns(replace(CARD, occasion=Occasion.DELEGATED), shown)
    assert channel.concerns(replace(CARD, occasion=Occasion.REMINDED), shown)
    assert channel.concerns(replace(CARD, occasion=Occasion.ESCALATED, escalation_level=1), shown)
    assert channel.concerns(replace(voted, version=2), shown)
    assert channel.concerns(replace(voted, input_hash="b" * 64), shown)
    for end in (s for s in ApprovalStatus if s is not ApprovalStatus.PENDING):
        assert channel.concerns(replace(CARD, status=end, occasion=Occasion.RESOLVED), shown)
        assert not channel.concerns(
            replace(CARD, status=end, occasion=Occasion.RESOLVED), {**shown, "status": end.value}
        )
        assert not channel.concerns(replace(CARD, status=end), {}), "nobody is told the end of what they never saw"


@pytest.mark.proves("D.138")
@pytest.mark.parametrize(
    "evil", [HOSTILE, "x\r\nBcc: evil@example.com\r\n\r\n<script>", "\n\nApprove: http://evil.example"]
)
async def test_hostile_text_stays_text_wherever_it_stands(evil: str) -> None:
    vote = CardVote(member=evil, decision=Choice.APPROVED, reason=evil)
    card = replace(
        CARD, org=evil, agent=evil, tool=evil, target=evil, risk="high", action=evil, details={evil: evil, "b": [evil]},
        arguments=evil, original_arguments=evil, agent_says=evil, asked_for=evil, rule=evil, policy_version=evil,
        deciders=(evil, evil), votes=(vote,), delegations=((evil, evil, evil),), question=evil, truncated=True,
    )  # fmt: skip
    ended = replace(card, status=ApprovalStatus.DENIED, resolved_by=evil, resolution_reason=evil)
    invitation = Invitation(org=evil, invited_by=evil, url="https://plane.example/verify/x", expires_at=NOW)
    for content in (card, ended, invitation):
        got = await mailed(content, member=evil)
        assert got.recipient == "bea@example.com"
        message = got.message
        assert message["Bcc"] is None
        assert len(message.get_all("Subject", [])) == len(message.get_all("To", [])) == 1
        assert "\n" not in str(message["Subject"])
        assert [address.addr_spec for address in message["To"].addresses] == ["bea@example.com"]
        assert len(" ".join(str(message["Subject"]).split())) <= 140
        markup = Markup(got.html)
        assert {"script", "img"}.isdisjoint(markup.tags)
        assert all(link.startswith("https://plane.example/") for link in markup.links)
        for part in (got.text, got.html, str(message["Subject"])):
            assert not [c for c in part if not c.isprintable() and c != "\n"], "what is hidden is shown"
        # No line of theirs begins where ours do.
        assert not [line for line in got.text.split("\n") if line.startswith(("Approve: http://evil", "Bcc"))]


@pytest.mark.proves("S1.204")
async def test_an_alert_names_the_job_and_what_to_do() -> None:
    evil = "<script>alert(1)</script>\u202e\r\nBcc: eve@example.com"
    id = UUID(int=5)
    alert = Alert(
        alert="checkpoint_corrupt", org=evil, agent=evil, agent_id=id, job_id=id, session_id=id, happened_at=NOW,
        corruption_type="crc_mismatch", message=f"Checkpoint corruption detected: {evil}", url=f"https://plane.example/jobs/{id}",
    )  # fmt: skip
    got = await mailed(alert)
    assert str(got.message["Subject"]).endswith("failed: its checkpoint is corrupt")
    assert got.message["Bcc"] is None
    for part in (got.text, got.html):
        assert f"cortex job resubmit {id}" in part
        assert "crc_mismatch" in part
        assert f"https://plane.example/jobs/{id}" in part
        assert not [c for c in part if not c.isprintable() and c != "\n"], "what is hidden is shown"
    assert {"script"}.isdisjoint(Markup(got.html).tags)


@pytest.mark.proves("D.138")
async def test_letters_of_every_script_arrive() -> None:
    card = replace(CARD, target="Zürich – 東京", agent_says="Ёлка ☃ 🎄", resolved_by=None)
    got = await mailed(card, member="Béa Ōe", address="bea@xn--bcher-kva.example")
    assert got.message["Subject"] == "Approval needed: ship Zürich – 東京"
    assert got.message["To"].addresses[0].display_name == "Béa Ōe"
    assert "Ёлка ☃ 🎄" in got.text
    assert "Ёлка ☃ 🎄" in got.html
    assert got.raw.isascii(), "encoded words, and no SMTPUTF8 where nothing needs it"
    assert "SMTPUTF8" not in got.options


@pytest.mark.proves("D.138")
async def test_an_address_with_such_letters_needs_a_server_that_knows_them() -> None:
    got = await mailed(address="béa@xn--bcher-kva.example")
    assert got.recipient == "béa@xn--bcher-kva.example"
    assert "SMTPUTF8" in got.options
    assert "To: Bea <béa@xn--bcher-kva.example>\r\n".encode() in got.raw
    async with mail_server(utf8=False) as server:
        channel = mailing(server)
        with pytest.raises(Undeliverable, match="such letters"):
            await channel.send(outgoing(address="béa@b"))
        await channel.send(outgoing())
        await channel.close()
        assert (len(server.got), server.connections) == (1, 1), "the conversation goes on"


# The server --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.139")
@pytest.mark.parametrize(
    ("where", "line", "expected"),
    [
        ("on_recipient", "451 4.7.1 greylisted, come back", TryAgain),
        ("on_recipient", "550 5.1.1 no such user", Undeliverable),
        ("on_recipient", "502 what?", TryAgain),
        ("on_data", "452 4.3.1 no room", TryAgain),
        ("on_data", "554 5.7.1 not wanted", Undeliverable),
        ("on_data", "500 what?", TryAgain),
        ("on_mail", "450 not now", TryAgain),
        ("on_mail", "553 5.1.8 you may not send", TryAgain),
        ("on_mail", "421 leaving", TryAgain),
    ],
)
async def test_a_refusal_is_for_now_or_for_good_and_the_next_mail_goes_out(
    where: str, line: str, expected: type[Exception]
) -> None:
    async with mail_server() as server:
        channel = mailing(server)
        getattr(server, where).append(line)
        with pytest.raises(expected) as raised:
            await channel.send(outgoing())
        assert line.split()[-1] in str(raised.value)
        assert server.got == []
        await channel.send(outgoing())
        assert len(server.got) == 1
        await channel.close()


@pytest.mark.proves("D.139")
@pytest.mark.parametrize(
    ("where", "line", "address"),
    [
        ("on_recipient", "550 5.1.1 no such user", True),
        ("on_recipient", "550 no such user", True),
        ("on_recipient", "551 moved", True),
        ("on_recipient", "553 bad name", True),
        ("on_recipient", "556 5.1.10 takes no mail", True),
        ("on_recipient", "550 5.7.1 your address is on a blocklist", False),
        ("on_recipient", "550 5.1.8 your sender is unknown", False),
        ("on_recipient", "554 your address is on a blocklist", False),
        ("on_recipient", "554 5.7.1 blocked", False),
        ("on_recipient", "552 5.2.2 mailbox full", False),
        ("on_data", "550 5.1.1 spam", False),
        ("on_data", "550 spam", False),
        ("on_data", "554 5.7.1 not wanted", False),
    ],
)
async def test_only_where_nobody_is_there_the_address_is_to_blame(where: str, line: str, address: bool) -> None:
    async with mail_server() as server:
        channel = mailing(server)
        getattr(server, where).append(line)
        with pytest.raises(Undeliverable) as raised:
            await channel.send(outgoing())
        assert raised.value.address is address
        await channel.close()


@pytest.mark.proves("D.139")
@pytest.mark.parametrize("where", ["on_mail", "on_recipient", "on_data"])
async def test_a_server_that_hangs_is_given_up_and_replaced(where: str) -> None:
    async with mail_server() as server:
        channel = mailing(server, timeout=1)
        getattr(server, where).append("hang")
        with pytest.raises(TryAgain, match="does not answer in time"):
            await channel.send(outgoing())
        await channel.send(outgoing())
        assert (len(server.got), server.connections) == (1, 2)
        await channel.close()


@pytest.mark.proves("D.139")
async def test_a_server_that_is_not_there_or_lies_is_tried_again() -> None:
    async with mail_server() as server:
        gone = server.port
    channel = EmailChannel(SmtpServer(host="127.0.0.1", port=gone), "c@d", timeout=2)
    with pytest.raises(TryAgain, match="does not take mail now"):
        await channel.send(outgoing())

    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    lying = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = lying.sockets[0].getsockname()[1]
    channel = EmailChannel(SmtpServer(host="127.0.0.1", port=port), "c@d", timeout=2)
    with pytest.raises(TryAgain):
        await channel.send(outgoing())
    lying.close()


@pytest.mark.proves("D.139")
async def test_encryption_that_is_required_and_not_there_sends_nothing() -> None:
    async with mail_server() as server:
        strict = SmtpServer.parse(f"smtp://127.0.0.1:{server.port}?starttls=required")
        channel = EmailChannel(strict, "c@d", timeout=2)
        with pytest.raises(TryAgain):
            await channel.send(outgoing())
        assert server.got == []


@pytest.mark.proves("D.139")
async def test_a_conversation_that_the_server_ended_is_replaced_without_a_word() -> None:
    async with mail_server() as server:
        channel = mailing(server)
        await channel.send(outgoing())
        server.on_mail.append("421 4.4.2 idle for too long")
        await channel.send(outgoing(version=2))
        assert (len(server.got), server.connections) == (2, 2)
        server.hang_up()
        await channel.send(outgoing(version=3))
        assert (len(server.got), server.connections) == (3, 3)
        server.on_data.append("drop")
        with pytest.raises(TryAgain):
            await channel.send(outgoing(version=4))
        assert len(server.got) == 4, "it may have arrived, so it is not sent again at once"
        await channel.close()


@pytest.mark.proves("D.139")
async def test_a_burst_goes_over_a_few_conversations_which_then_end_by_themselves() -> None:
    async with mail_server() as server:
        channel = mailing(server, idle_seconds=0.2)
        await asyncio.gather(*(channel.send(outgoing(version=n)) for n in range(1, 61)))
        assert len(server.got) == 60
        assert server.connections <= 4
        async with asyncio.timeout(5):
            while not server.is_quiet:  # noqa: ASYNC110 -- only the sockets know
                await asyncio.sleep(0.01)
        await channel.close()
