"""GitLab passes what every channel must pass, on an issue of a private project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs.inbound import VendorRequest
from tests.channels.behaviour import Arrived, Failure, without_pace
from tests.channels.comment_behaviour import CommentSuite, arrived, connect_vendor
from tests.channels.comment_interactive import CommentInteractiveSuite, CommentStage
from tests.channels.outage_behaviour import OutageSuite
from tests.emulators.gitlab import BOT, TOKEN, GitLabEmulator
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.people import World

PLACE = "acme/shop#5"
SECRET = "webhook-secret-of-gitlab"


class GitLabStage:
    redelivers = True
    pause = timedelta(seconds=30)

    def __init__(self, emulator: GitLabEmulator, channel: GitLabChannel) -> None:
        self.emulator, self.channel = emulator, channel

    async def connect(self, world: World) -> UUID:
        secrets = {"token": TOKEN, "webhook_secret": SECRET}
        return await connect_vendor(world, "gitlab", {"api_url": self.emulator.url}, secrets)

    def address(self, name: str) -> str:
        return PLACE

    async def arrived(self) -> list[Arrived]:
        return [arrived(write.place, write.body) for write in self.emulator.writes]

    def fail(self, how: Failure, times: int) -> None:
        if not times:
            self.emulator.note_faults.clear()
        faults = {
            Failure.TEMPORARY: VendorFault(status=502),
            Failure.PERMANENT: VendorFault(status=403, body={"message": "403 Forbidden"}),
            Failure.HANG: VendorFault(hangs=True),
            Failure.LOST_ANSWER: VendorFault(status=502, is_late=True),
            Failure.NO_ANSWER: VendorFault(hangs=True, is_late=True),
            Failure.RATE_LIMITED: VendorFault(
                status=429, headers={"date": "Fri, 01 May 2026 12:00:00 GMT", "ratelimit-reset": "1777636830"}
            ),
            Failure.REVOKED: VendorFault(status=401, body={"message": "401 Unauthorized"}),
        }
        self.emulator.note_faults.add(faults[how], times)


class GitLabLog:
    place = PLACE

    def __init__(self, emulator: GitLabEmulator) -> None:
        self._emulator = emulator

    def written(self) -> list[tuple[int, str]]:
        return [(id, note["body"]) for id, note in self._emulator.notes.items() if note["author"]["id"] == BOT["id"]]

    def reactions(self) -> list[tuple[int, str]]:
        return [(id, {"thumbsup": "+1"}.get(name, name)) for id, name in self._emulator.emoji]

    async def say(self, name: str, id: int, text: str) -> tuple[int, VendorRequest]:
        hook = self._emulator.say(self.place, text, {"id": id, "username": name, "name": name})
        return max(self._emulator.notes), VendorRequest("POST", {}, hook.headers(SECRET), hook.body)

    def signed_by_nobody(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {**headers, "x-gitlab-token": "guess"}


@asynccontextmanager
async def gitlab_stage() -> AsyncIterator[GitLabStage]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitLabEmulator().serve() as emulator:
        yield GitLabStage(emulator, without_pace(GitLabChannel(client)))
        await client.close()


@pytest_asyncio.fixture
async def gitlab() -> AsyncIterator[GitLabStage]:
    async with gitlab_stage() as stage:
        yield stage


class TestGitLab(CommentSuite, OutageSuite):
    @pytest.fixture
    def stage(self, gitlab: GitLabStage) -> GitLabStage:
        return gitlab


class TestGitLabInteractive(CommentInteractiveSuite):
    place, channel_type = PLACE, "gitlab"

    @pytest.fixture
    def stage(self, gitlab: GitLabStage) -> CommentStage:
        return CommentStage(gitlab, GitLabLog(gitlab.emulator))

    @pytest.mark.proves("S4.42")
    async def test_press_approves(self, strict: World, admin: asyncpg.Connection, stage: CommentStage) -> None:
        await super().test_press_approves(strict, admin, stage)
