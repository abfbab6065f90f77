"""GitHub passes what every channel must pass, on an issue of a private repository."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs import inbound
from cortex_plane.notify.verbs.inbound import InboundDoor, VendorRequest
from tests.channels.behaviour import Arrived, Failure, without_pace
from tests.channels.comment_behaviour import CommentSuite, arrived, connect_vendor
from tests.channels.comment_interactive import CommentInteractiveSuite, CommentStage
from tests.channels.interactive_behaviour import ListeningSuite
from tests.channels.outage_behaviour import OutageSuite
from tests.emulators import github_objects as objects
from tests.emulators.github import APP_ID, INSTALLATION_ID, GitHubEmulator, app_key_pem
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.people import World

PLACE = "acme/shop#12"
SECRET = "webhook-secret-of-github"


class GitHubStage:
    redelivers = True
    pause = timedelta(seconds=40)

    def __init__(self, emulator: GitHubEmulator, channel: GitHubChannel) -> None:
        self.emulator, self.channel = emulator, channel

    async def connect(self, world: World) -> UUID:
        # As `identify` stores it: whoever has this asks GitHub for the webhooks that failed.
        config = {
            "api_url": self.emulator.url, "app_id": str(APP_ID), "installation_id": str(INSTALLATION_ID), "mode": "polling",
        }  # fmt: skip
        return await connect_vendor(world, "github", config, {"private_key": app_key_pem(), "webhook_secret": SECRET})

    def address(self, name: str) -> str:
        return PLACE

    async def arrived(self) -> list[Arrived]:
        return [arrived(write.place, write.body) for write in self.emulator.writes]

    def fail(self, how: Failure, times: int) -> None:
        if not times:
            self.emulator.comment_faults.clear()
        match how:
            case Failure.TEMPORARY:
                fault = VendorFault(status=502)
            case Failure.PERMANENT:
                fault = VendorFault(status=404, body={"message": "Not Found"})
            case Failure.HANG:
                fault = VendorFault(hangs=True)
            case Failure.LOST_ANSWER:
                fault = VendorFault(status=502, is_late=True)
            case Failure.NO_ANSWER:
                fault = VendorFault(hangs=True, is_late=True)
            case Failure.RATE_LIMITED:
                body = {"message": "You have exceeded a secondary rate limit."}
                fault = VendorFault(status=403, body=body, headers={"retry-after": "40"})
            case Failure.REVOKED:
                fault = VendorFault(status=401, body={"message": "Bad credentials"})
        self.emulator.comment_faults.add(fault, times)


class GitHubLog:
    place = PLACE

    def __init__(self, emulator: GitHubEmulator) -> None:
        self._emulator = emulator

    def written(self) -> list[tuple[int, str]]:
        return [
            (id, comment["body"]) for id, comment in self._emulator.comments.items() if comment["user"]["type"] == "Bot"
        ]

    def reactions(self) -> list[tuple[int, str]]:
        return self._emulator.reactions

    async def say(self, name: str, id: int, text: str) -> tuple[int, VendorRequest]:
        webhook = await self._emulator.say(self.place, text, objects.user(name, id))
        headers = self._emulator.headers_of(webhook, SECRET)
        return max(self._emulator.comments), VendorRequest("POST", {}, headers, webhook.body)

    def signed_by_nobody(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {**headers, "x-hub-signature-256": "sha256=" + "0" * 64}


@asynccontextmanager
async def github_stage() -> AsyncIterator[GitHubStage]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitHubEmulator().serve() as emulator:
        yield GitHubStage(emulator, without_pace(GitHubChannel(client, redelivery_seconds=0.02)))
        await client.close()


@pytest_asyncio.fixture
async def github() -> AsyncIterator[GitHubStage]:
    async with github_stage() as stage:
        yield stage


class ListeningGitHubStage(CommentStage):
    """A plane that GitHub cannot reach while somebody writes: it asks for the webhooks that failed."""

    def __init__(self, stage: GitHubStage) -> None:
        super().__init__(stage, GitHubLog(stage.emulator))
        self._emulator, self._is_away = stage.emulator, False

    async def connect_listening(self, world: World) -> UUID:
        id, door = await self.connect(world), InboundDoor({"github": self.channel})

        async def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
            if self._is_away:
                return 502
            request = VendorRequest("POST", {}, {name.lower(): value for name, value in headers.items()}, body)
            return (await inbound.receive(world.db, door, id, request)).status

        self._emulator.hook, self._emulator.post = {"url": "https://plane.example/v1/in", "secret": SECRET}, post
        return id

    async def hold(self, name: str, text: str) -> None:
        self._is_away = True
        await self.write(name, text)
        self._is_away = False


class TestGitHubListening(ListeningSuite):
    @pytest.fixture
    def stage(self, github: GitHubStage) -> ListeningGitHubStage:
        return ListeningGitHubStage(github)


class TestGitHub(CommentSuite, OutageSuite):
    @pytest.fixture
    def stage(self, github: GitHubStage) -> GitHubStage:
        return github


class TestGitHubInteractive(CommentInteractiveSuite):
    place, channel_type = PLACE, "github"

    @pytest.fixture
    def stage(self, github: GitHubStage) -> CommentStage:
        return CommentStage(github, GitHubLog(github.emulator))

    @pytest.mark.proves("S4.42")
    async def test_press_approves(self, strict: World, admin: asyncpg.Connection, stage: CommentStage) -> None:
        await super().test_press_approves(strict, admin, stage)
