"""Webhooks out, to a real server on loopback: signed as the vendor's library wants it, and never where they must not go."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Choice
from cortex_plane.channels import webhooks as webhook_channel
from cortex_plane.channels.pinned_http import (
    MAX_ANSWER_BYTES,
    RESOLVER_THREADS,
    PinnedClient,
    SystemResolver,
    Unreachable,
    vetted,
)
from cortex_plane.channels.webhooks import MAX_BYTES, PINGS_AT_ONCE, WebhookChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.model.notifications import (
    Alert,
    Card,
    CardVote,
    Invitation,
    Occasion,
    Outgoing,
    Secrets,
    Target,
    TryAgain,
    Undeliverable,
)
from cortex_plane.policies.model.policies import Template
from cortex_plane.tenancy.verbs.connections import new_webhook_secret
from tests.fixtures.receivers import Receiver, Reply, certified, receiving

SECRET, OLDER = new_webhook_secret(), new_webhook_secret()
ID = UUID("0190a1b2-0000-7000-8000-000000000001")


def card(**change: Any) -> Card:
    made = Card(
        approval_id=UUID(int=7), kind=ApprovalKind.CALL, status=ApprovalStatus.PENDING, version=1, input_hash="a" * 64,
        occasion=Occasion.REQUESTED, org="Acme", agent="shipper", tool="ship", target="ship", risk="high",
        template=Template.DEV_REVIEW, action="Ship 1.0", details=None, arguments='{"version": "1.0"}', truncated=False,
        original_arguments=None, invocations=1, agent_says="I ship.", asked_for="Ship it", question=None, rule="default",
        if_nobody="If nobody decides by then, the call is not sent and the job fails.", policy_version="1", required_clearance=0, deciders=("Ada",), votes=(), votes_needed=1, delegations=(),
        escalation_level=0, requested_at=datetime(2030, 1, 1, tzinfo=UTC), deadline=None, resolved_at=None,
        resolved_by=None, resolution_reason=None, url="https://plane.example/approvals/7",
        approve_url="https://plane.example/a", deny_url="https://plane.example/d", token="cortex_apr_1_secret",
    )  # fmt: skip
    return replace(made, **change)


def outgoing(url: str, content: Card | Invitation | Alert | None = None, **change: Any) -> Outgoing:
    target = Target(
        connection_id=UUID(int=3), connection="hook", config={"url": url}, secrets={"secret": SECRET},
        address="ada@corp", member="Ada",
    )  # fmt: skip
    made = Outgoing(
        id=ID, org_id=UUID(int=1), version=4, target=target, content=content or card(), earlier=None,
        timestamp=datetime.now(UTC),
    )  # fmt: skip
    return replace(made, **change)


def channel_to(receiver: Receiver, **options: Any) -> WebhookChannel:
    return WebhookChannel(Allowed.parse(receiver.host), **options)


@pytest.mark.proves("D.143")
async def test_a_card_is_posted_as_json_that_the_vendors_library_verifies() -> None:
    async with receiving() as receiver:
        sent = await channel_to(receiver).send(outgoing(receiver.url))
    (got,) = receiver.got
    assert sent.message_ref == got.headers["webhook-id"] == f"msg_{ID}_4"
    assert got.target == "/hook?to=cortex"
    assert got.headers["host"] == receiver.host
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"].startswith("cortex-plane/")
    assert got.headers["accept-encoding"] == "identity"
    said = got.verified(SECRET)
    assert (said["type"], said["timestamp"]) == ("approval.requested", "2030-01-01T00:00:00+00:00")
    assert said["data"]["recipient"] == {"external_user": "ada@corp", "member": "Ada"}
    assert (said["data"]["version"], said["data"]["input_hash"]) == (1, "a" * 64)
    assert said["data"]["arguments"] == '{"version": "1.0"}'
    assert said["data"]["truncated"] is False
    for credential in (b"cortex_apr_", b"plane.example/a", b"plane.example/d"):
        assert credential not in got.body.replace(b"/approvals/", b"/"), "it has no place in somebody else's log"
    assert said["data"].keys().isdisjoint({"token", "approve_url", "deny_url"})


@pytest.mark.proves("D.143")
@pytest.mark.parametrize(
    ("change", "earlier", "kind"),
    [
        ({}, None, "approval.requested"),
        ({"occasion": Occasion.ESCALATED}, None, "approval.requested"),
        ({"occasion": Occasion.REMINDED}, "msg", "approval.updated"),
        ({"status": ApprovalStatus.APPROVED, "occasion": Occasion.RESOLVED}, "msg", "approval.resolved"),
        ({"status": ApprovalStatus.EXPIRED, "occasion": Occasion.RESOLVED}, None, "approval.resolved"),
    ],
)
async def test_the_type_tells_what_happened(change: dict[str, Any], earlier: str | None, kind: str) -> None:
    async with receiving() as receiver:
        channel = channel_to(receiver)
        shown = card(**change)
        assert channel.concerns(shown, {})
        await channel.send(outgoing(receiver.url, shown, earlier=earlier))
    assert receiver.got[0].json["type"] == kind
    assert receiver.got[0].data["occasion"] == shown.occasion


@pytest.mark.proves("D.140", "D.143")
async def test_after_a_rotation_either_secret_verifies_a_message_for_a_day() -> None:
    now = datetime.now(UTC)
    for until, older_counts in ((now + timedelta(minutes=1), True), (now - timedelta(minutes=1), False)):
        kept = Secrets(secret=SECRET, previous=OLDER, previous_until=until).kept()
        async with receiving() as receiver:
            message = outgoing(receiver.url)
            message = replace(message, target=replace(message.target, secrets=kept))
            await channel_to(receiver).send(message)
        (got,) = receiver.got
        got.verified(SECRET)
        assert len(got.headers["webhook-signature"].split(" ")) == 1 + older_counts
        if older_counts:
            got.verified(OLDER)


@pytest.mark.proves("D.143")
@pytest.mark.parametrize(
    "change",
    [
        {"arguments": "x" * 500_000},
        {"arguments": '"' * 300_000},
        {"arguments": "ä" * 30_000, "original_arguments": "\u202e" * 30_000},
        {"details": {str(n): "short" for n in range(10_000)}},
        {"details": {"one": "x" * 100_000}, "agent_says": "y" * 100_000, "asked_for": "z" * 100_000},
        {"votes": tuple(CardVote(member="M" * 200, decision=Choice.APPROVED, reason="r" * 2000) for _ in range(500))},
        {"deciders": tuple("d" * 200 for _ in range(1000))},
        {"delegations": tuple(("a" * 200, "b" * 200, "c" * 2000) for _ in range(500))},
    ],
)
async def test_what_is_too_long_is_cut_and_the_link_leads_to_the_whole(change: dict[str, Any]) -> None:
    shown = card(**change)
    async with receiving() as receiver:
        await channel_to(receiver).send(outgoing(receiver.url, shown))
    (got,) = receiver.got
    assert len(got.body) < MAX_BYTES
    assert got.verified(SECRET)["data"]["truncated"] is True
    assert (got.data["url"], got.data["input_hash"], got.data["status"]) == (shown.url, "a" * 64, "pending")
    assert datetime.fromisoformat(got.data["requested_at"]) == shown.requested_at


# What comes back -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.144")
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_yes_is_enough(status: int) -> None:
    async with receiving() as receiver:
        receiver.default = Reply(status)
        await channel_to(receiver).send(outgoing(receiver.url))


@pytest.mark.proves("D.144")
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    async with receiving() as receiver, receiving() as elsewhere:
        receiver.default = Reply(status, {"Location": elsewhere.url})
        channel = WebhookChannel(Allowed.parse(f"{receiver.host},{elsewhere.host}"))
        with pytest.raises(TryAgain, match=f"Redirects are not followed: HTTP {status}"):
            await channel.send(outgoing(receiver.url))
    assert elsewhere.connections == 0


@pytest.mark.proves("D.144")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 422, 425, 429, 500, 502, 503])
async def test_any_no_is_tried_again(status: int) -> None:
    async with receiving() as receiver:
        receiver.default = Reply(status, body=b"no\x00 \x1b[31mthanks\n" + b"x" * 1000)
        with pytest.raises(TryAgain) as error:
            await channel_to(receiver).send(outgoing(receiver.url))
    assert f"HTTP {status}: no [31mthanks" in error.value.message
    assert error.value.message.isprintable()
    assert len(error.value.message) < 300
    assert error.value.after_seconds is None


@pytest.mark.proves("D.144")
async def test_gone_means_that_the_whole_connection_is_not_wanted() -> None:
    async with receiving() as receiver:
        receiver.default = Reply(410)
        with pytest.raises(Undeliverable) as error:
            await channel_to(receiver).send(outgoing(receiver.url))
    assert error.value.gone


@pytest.mark.proves("D.144")
@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("86400", 3600, 3600),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600, 3600),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("in ten minutes", 500, 601),
        ("soon", None, None),
        ("-5", None, None),
        ("9" * 40, None, None),
        ("Mon, 01 Jan 2024 00:00:00 +9999999999999", None, None),
    ],
)
async def test_whoever_is_busy_may_name_a_time_of_up_to_an_hour(
    header: str, low: float | None, high: float | None
) -> None:
    if header == "in ten minutes":
        header = (datetime.now(UTC) + timedelta(minutes=10)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    for status in (429, 503):
        async with receiving() as receiver:
            receiver.default = Reply(status, {"Retry-After": header})
            with pytest.raises(TryAgain) as error:
                await channel_to(receiver).send(outgoing(receiver.url))
        after = error.value.after_seconds
        assert (after is None) == (low is None)
        if after is not None and low is not None and high is not None:
            assert low <= after <= high


@pytest.mark.proves("D.144")
async def test_silence_ends_at_the_time_limit() -> None:
    async with receiving() as receiver:
        receiver.default = Reply(silent=True)
        started = time.monotonic()
        with pytest.raises(TryAgain, match=r"No answer within 0\.2 seconds"):
            await channel_to(receiver, timeout=0.2).send(outgoing(receiver.url))
        assert time.monotonic() - started < 20


@pytest.mark.proves("D.144")
async def test_a_name_that_is_never_resolved_ends_at_the_time_limit_too() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(TryAgain, match="No answer within"):
        await WebhookChannel(resolver=never, timeout=0.1).send(outgoing("https://hooks.example/"))


async def test_names_are_resolved_in_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers that never answer keep nobody else from the loop's threads."""
    ends, threads = threading.Event(), set()

    def hang(*_: Any, **__: Any) -> list[Any]:
        threads.add(threading.current_thread().name)
        ends.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    channel = WebhookChannel(timeout=0.2)
    try:
        sent = [channel.send(outgoing("https://hooks.example/")) for _ in range(30)]
        failed = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(each, TryAgain) for each in failed)
        assert await asyncio.wait_for(loop.run_in_executor(None, lambda: "free"), 5) == "free"
        assert 0 < len(threads) <= RESOLVER_THREADS
        assert all(name.startswith("resolver") for name in threads)
        with pytest.raises(TryAgain):
            await channel.ping(outgoing("https://hooks.example/").target, ID)
        assert len(threads) > RESOLVER_THREADS - 1
    finally:
        ends.set()


async def test_only_a_few_pings_are_on_their_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_channel, "PING_PATIENCE", 0.05)
    async with receiving() as receiver:
        receiver.default = Reply(silent=True)
        channel = channel_to(receiver, timeout=1.5)
        target = outgoing(receiver.url).target
        tried = await asyncio.gather(
            *(channel.ping(target, ID) for _ in range(3 * PINGS_AT_ONCE)), return_exceptions=True
        )
        busy = [each for each in tried if "Too many connections are tried out" in str(each)]
        assert (len(busy), len(receiver.got)) == (2 * PINGS_AT_ONCE, PINGS_AT_ONCE)
        assert all(isinstance(each, TryAgain) for each in tried)
        receiver.default = Reply()
        assert (await channel.ping(target, ID)).startswith("HTTP 204"), "afterwards there is room again"


@pytest.mark.proves("D.144")
async def test_of_a_large_answer_little_is_read_and_it_counts() -> None:
    async with receiving() as receiver:
        receiver.default = Reply(200, body=b"x" * 10_000_000)
        await channel_to(receiver).send(outgoing(receiver.url))
        answer = await PinnedClient(Allowed.parse(receiver.host)).post(receiver.url, {}, b"")
        assert len(answer.body) == MAX_ANSWER_BYTES
        receiver.default = Reply(500, body=b"x" * 10_000_000)
        with pytest.raises(TryAgain):
            await channel_to(receiver).send(outgoing(receiver.url))


@pytest.mark.proves("D.144")
async def test_a_yes_whose_text_never_ends_is_a_yes() -> None:
    async with receiving() as receiver:
        receiver.default = Reply(200, {"Content-Length": "100"}, b"so far", endless=True)
        await channel_to(receiver, timeout=1).send(outgoing(receiver.url))


@pytest.mark.proves("D.144")
async def test_whoever_hangs_up_refuses_or_is_not_there_is_tried_again() -> None:
    async with receiving() as receiver:
        receiver.default = Reply(broken=True)
        with pytest.raises(TryAgain, match="The request failed"):
            await channel_to(receiver).send(outgoing(receiver.url))
    with pytest.raises(TryAgain, match="The request failed"):
        await channel_to(receiver).send(outgoing(receiver.url))


async def test_an_answer_in_another_protocol_is_tried_again() -> None:
    async def noise(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(noise, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel = WebhookChannel(Allowed.parse(f"127.0.0.1:{port}"))
    with pytest.raises(TryAgain):
        await channel.send(outgoing(f"http://127.0.0.1:{port}/"))
    server.close()


@pytest.mark.proves("S1.204")
async def test_an_alert_is_posted_with_all_its_fields() -> None:
    id, at = UUID(int=5), datetime(2030, 1, 1, tzinfo=UTC)
    alert = Alert(
        alert="checkpoint_corrupt", org="Acme", agent="shipper", agent_id=id, job_id=id, session_id=id, happened_at=at,
        corruption_type="crc_mismatch", message="Checkpoint corruption detected", url=f"https://plane.example/jobs/{id}",
    )  # fmt: skip
    async with receiving() as receiver:
        await channel_to(receiver).send(outgoing(receiver.url, alert))
    (got,) = receiver.got
    posted = got.verified(SECRET)
    assert (posted["type"], posted["timestamp"]) == ("alert.checkpoint_corrupt", "2030-01-01T00:00:00+00:00")
    assert (posted["data"]["job_id"], posted["data"]["corruption_type"]) == (str(id), "crc_mismatch")


async def test_an_invitation_is_not_carried() -> None:
    invitation = Invitation(org="Acme", invited_by="Ada", url="https://x.example", expires_at=datetime.now(UTC))
    async with receiving() as receiver:
        with pytest.raises(Undeliverable):
            await channel_to(receiver).send(outgoing(receiver.url, invitation))
    assert receiver.connections == 0


def test_the_schedule_is_the_standards() -> None:
    minutes = [seconds / 60 for seconds in WebhookChannel.retry_schedule]
    assert minutes == [5 / 60, 5, 30, 120, 300, 600, 840, 1200, 1440]


# Where it goes -------------------------------------------------------------------------------------------------------


def resolving(*addresses: str) -> Any:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.mark.proves("D.142")
@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["169.254.169.254"],
        ["10.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["1.1.1.1", "127.0.0.1"],
        ["127.0.0.1", "1.1.1.1"],
        ["2606:4700::1111", "fe80::1%eth0"],
        ["nonsense"],
    ],
)
async def test_a_name_with_one_address_that_is_not_public_is_refused_and_nothing_is_sent(addresses: list[str]) -> None:
    async with receiving() as receiver:
        channel = WebhookChannel(resolver=resolving(*addresses))
        with pytest.raises(TryAgain, match=r"rebind\.example has no address on the public internet") as error:
            await channel.send(outgoing(f"https://rebind.example:{receiver.port}/"))
    assert not any(address in error.value.message for address in addresses), "what it resolves to is not told"
    assert receiver.connections == 0


@pytest.mark.proves("D.142")
@pytest.mark.parametrize(
    "url", ["http://hooks.example/", "https://127.0.0.1/", "ftp://x.example", "https://a@b.example", ""]
)
async def test_an_address_that_was_allowed_once_is_checked_with_every_message(url: str) -> None:
    with pytest.raises(Undeliverable):
        await WebhookChannel(resolver=resolving("1.1.1.1")).send(outgoing(url))


@pytest.mark.proves("D.142")
async def test_what_was_checked_is_what_is_connected_to_whatever_the_name_resolves_to_next() -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    asked: list[str] = []

    async def flipping(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return next(answers)

    async with receiving() as receiver:
        channel = WebhookChannel(Allowed.parse("rebind.example,127.0.0.0/8"), resolver=flipping)
        await channel.send(outgoing(f"http://rebind.example:{receiver.port}/"))
    assert asked == ["rebind.example"], "resolved once, for the check and for the connection"
    assert receiver.got[0].headers["host"] == f"rebind.example:{receiver.port}"


@pytest.mark.proves("D.142")
async def test_a_second_address_is_tried_where_the_first_does_not_answer() -> None:
    async with receiving() as receiver:
        allowed = Allowed.parse("127.0.0.0/8,hooks.internal")
        channel = WebhookChannel(allowed, resolver=resolving("127.9.9.9", "127.0.0.1"))
        await channel.send(outgoing(f"http://hooks.internal:{receiver.port}/"))
    assert len(receiver.got) == 1


@pytest.mark.proves("D.142")
async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.host}")
        await channel_to(receiver).send(outgoing(receiver.url))
    assert (len(receiver.got), proxy.connections) == (1, 0)


async def test_a_name_without_addresses_is_tried_again() -> None:
    with pytest.raises(TryAgain, match="has no address on the public internet"):
        await WebhookChannel(resolver=resolving()).send(outgoing("https://hooks.example/"))

    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(TryAgain, match="has no address on the public internet"):
        await WebhookChannel(resolver=unknown).send(outgoing("https://hooks.example/"))


@pytest.mark.proves("D.142")
async def test_the_real_resolver_finds_loopback_behind_a_name() -> None:
    with pytest.raises(Unreachable):
        await vetted("localhost", 80, Allowed(), SystemResolver())
    assert "127.0.0.1" in await vetted("localhost", 80, Allowed.parse("localhost"), SystemResolver())


# TLS -----------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.142")
async def test_over_tls_name_and_certificate_are_those_of_the_address_and_not_of_the_pin() -> None:
    server, client = certified("hooks.example")
    asked: list[str | None] = []
    server.sni_callback = lambda _, name, __: asked.append(name)
    async with receiving(server) as receiver:
        channel = WebhookChannel(
            Allowed.parse("hooks.example,other.example"), resolver=resolving("127.0.0.1"), ssl_context=client
        )
        await channel.send(outgoing(f"https://hooks.example:{receiver.port}/"))
        assert asked == ["hooks.example"]
        receiver.got[0].verified(SECRET)
        with pytest.raises(TryAgain, match="certificate verify failed"):
            await channel.send(outgoing(f"https://other.example:{receiver.port}/"))
        stranger = WebhookChannel(Allowed.parse("hooks.example"), resolver=resolving("127.0.0.1"))
        with pytest.raises(TryAgain, match="certificate verify failed"):
            await stranger.send(outgoing(f"https://hooks.example:{receiver.port}/"))
    assert len(receiver.got) == 1
