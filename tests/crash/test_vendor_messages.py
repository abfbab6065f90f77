"""A notifier killed between sending and recording, on every channel of a vendor: the message comes again, and is decided once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from signal import SIGCONT, SIGKILL, SIGSTOP

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.tenancy.model.identities import DeliveryStatus
from tests.channels.behaviour import Deploying, Failure, delivery_of
from tests.channels.comment_interactive import CommentInteractiveSuite, CommentStage
from tests.channels.interactive_behaviour import InteractiveStage, InteractiveSuite
from tests.channels.test_discord_behaviour import discord_stage
from tests.channels.test_github_behaviour import PLACE as ISSUE_ON_GITHUB
from tests.channels.test_github_behaviour import GitHubLog, github_stage
from tests.channels.test_gitlab_behaviour import PLACE as ISSUE_ON_GITLAB
from tests.channels.test_gitlab_behaviour import GitLabLog, gitlab_stage
from tests.channels.test_slack_behaviour import slack_stage
from tests.channels.test_telegram_behaviour import telegram_stage
from tests.channels.test_whatsapp_behaviour import whatsapp_stage
from tests.conftest import Urls
from tests.crash.workers import DEADLINE, Workers
from tests.fixtures.approvals import waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.workers import call, whole

LEASE = timedelta(seconds=61)
"""Of what a notifier has taken, and a second more."""


@asynccontextmanager
async def _github() -> AsyncIterator[CommentStage]:
    async with github_stage() as stage:
        yield CommentStage(stage, GitHubLog(stage.emulator))


@asynccontextmanager
async def _gitlab() -> AsyncIterator[CommentStage]:
    async with gitlab_stage() as stage:
        yield CommentStage(stage, GitLabLog(stage.emulator))


@dataclass(frozen=True)
class Case:
    stage: Callable[[], AbstractAsyncContextManager[InteractiveStage]]
    copies: int = 2
    """How many messages there are at the end: no vendor but Discord can tell that it has one already."""
    place: str | None = None


CASES = {
    "telegram": Case(telegram_stage),
    "slack": Case(slack_stage),
    "discord": Case(discord_stage, copies=1),
    "whatsapp": Case(whatsapp_stage),
    "github": Case(_github, place=ISSUE_ON_GITHUB),
    "gitlab": Case(_gitlab, place=ISSUE_ON_GITLAB),
}


class _Suite(CommentInteractiveSuite):
    def __init__(self, kind: str, place: str) -> None:
        self.channel_type, self.place = kind, place


@pytest.mark.proves("D.124")
@pytest.mark.parametrize("kind", CASES)
async def test_killed_between_sending_and_recording(
    strict: World, urls: Urls, admin: asyncpg.Connection, workers: Workers, kind: str
) -> None:
    case = CASES[kind]
    suite = InteractiveSuite() if case.place is None else _Suite(kind, case.place)
    async with case.stage() as stage:
        plane = await suite._plane(strict, admin, stage)
        _, (asked,) = await waiting(strict, Deploying(), call("deploy", plan={"to": "production"}))
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        stage.fail(Failure.NO_ANSWER, 1)
        process = await workers.start(urls.app, "none", verb="notify", arguments={"kind": kind}, pool=4)
        async with asyncio.timeout(DEADLINE):
            while not await stage.messages():
                assert process.alive, process.said()
                await asyncio.sleep(0.01)
        assert await process.end(SIGKILL) == -SIGKILL
        delivery = await delivery_of(strict, asked)
        assert (delivery.status, delivery.message_ref) == (DeliveryStatus.PENDING, None)
        await clock.advance(LEASE)
        heir = await workers.start(urls.app, "none", verb="notify", arguments={"kind": kind}, pool=4)
        assert await heir.wait() == 0, heir.said()
        messages = await stage.messages()
        assert len(messages) == case.copies
        assert (await delivery_of(strict, asked)).status is DeliveryStatus.DELIVERED
        for message in messages:
            await plane.take(await stage.press("bea", message, "Approve"))
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert (details.approval.status, len(details.votes)) == (ApprovalStatus.APPROVED, 1)
        answers = (await stage.answers("bea"))[-case.copies :]
        assert answers == ["Approved.", "It is approved already by Bea."][: case.copies]
        assert await whole(strict)


@pytest.mark.proves("D.825")
async def test_listener_that_was_stopped_and_goes_on_stores_nothing(
    world: World, urls: Urls, admin: asyncpg.Connection, workers: Workers
) -> None:
    """What Telegram sends to the stopped process is read again by the one that took over, and is not stored a second time when the first one
    goes on."""

    async def until_stored(*texts: str) -> None:
        query = "select payload #>> '{update,message,text}' as text from channel_event order by seq"
        async with asyncio.timeout(DEADLINE):
            while len(rows := await admin.fetch(query)) < len(texts):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
        assert [row["text"] for row in rows] == list(texts)

    async with telegram_stage() as stage:
        await stage.connect_listening(world)
        clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
        start = partial(workers.start, urls.app, "none", verb="listen", arguments={"kind": "telegram"}, pool=2)
        first = await start()
        await stage.hold("bea", "one")
        await until_stored("one")
        await stage.is_polled()
        first.send(SIGSTOP)
        await first.stopped()
        await stage.hold("bea", "two")
        await clock.advance(LEASE)
        second = await start()
        await until_stored("one", "two")
        assert await admin.fetchval("select epoch from channel_listener") == 2
        first.send(SIGCONT)
        async with asyncio.timeout(DEADLINE):
            while "stopped listening" not in first.said():  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.01)
        await stage.hold("bea", "three")
        await until_stored("one", "two", "three")
        assert second.alive
        assert await admin.fetchval("select epoch from channel_listener") == 2
