"""GitLab passes what every channel must pass, on an issue of a private project."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest_asyncio

from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from tests.channels.behaviour import Arrived, Failure
from tests.channels.comment_behaviour import CommentSuite, arrived, connect_vendor
from tests.emulators.gitlab import TOKEN, GitLabEmulator
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.people import World

SECRET = "webhook-secret-of-gitlab"


class GitLabStage:
    redelivers = True

    def __init__(self, emulator: GitLabEmulator, channel: GitLabChannel) -> None:
        self.emulator, self.channel = emulator, channel

    async def connect(self, world: World) -> UUID:
        secrets = {"token": TOKEN, "webhook_secret": SECRET}
        return await connect_vendor(world, "gitlab", {"api_url": self.emulator.url}, secrets)

    def address(self, name: str) -> str:
        return "acme/shop#5"

    async def arrived(self) -> list[Arrived]:
        return [arrived(write.place, write.body) for write in self.emulator.writes]

    def fail(self, how: Failure, times: int) -> None:
        faults = {
            Failure.TEMPORARY: VendorFault(status=502),
            Failure.PERMANENT: VendorFault(status=403, body={"message": "403 Forbidden"}),
            Failure.HANG: VendorFault(hangs=True),
            Failure.LOST_ANSWER: VendorFault(status=502, is_late=True),
        }
        self.emulator.note_faults.add(faults[how], times)


class TestGitLab(CommentSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[GitLabStage]:
        client = VendorClient(Allowed.parse("127.0.0.1"))
        async with GitLabEmulator().serve() as emulator:
            yield GitLabStage(emulator, GitLabChannel(client))
            await client.close()
