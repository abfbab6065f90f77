"""Mail passes what every channel must pass, with a real mail server at its other end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from cortex_plane.channels.email import EmailChannel
from tests.channels.behaviour import Arrived, Failure
from tests.channels.outage_behaviour import OutageSuite
from tests.channels.postbox import connect
from tests.fixtures.mail_servers import Got, MailServer, mail_server
from tests.fixtures.people import World

ENDS = ("approved", "denied", "expired", "cancelled")


class EmailStage:
    redelivers = True
    pause = None

    def __init__(self, server: MailServer) -> None:
        self._server = server
        self.channel = EmailChannel(server.server, "Cortex <cortex@plane.example>")

    async def connect(self, world: World) -> UUID:
        return await connect(world, "email", "email")

    def address(self, name: str) -> str:
        return f"{name}@example.com"

    async def arrived(self) -> list[Arrived]:
        return [_arrived(got) for got in self._server.got]

    def fail(self, how: Failure, times: int) -> None:
        if not times:
            self._server.on_recipient.clear()
        match how:
            case Failure.TEMPORARY:
                self._server.on_recipient += ["451 4.3.0 not now"] * times
            case Failure.PERMANENT:
                self._server.on_recipient += ["550 5.1.1 nobody lives here"] * times
            case Failure.HANG:
                self._server.on_recipient += ["hang"] * times
            case Failure.LOST_ANSWER:
                self._server.on_data += ["drop"] * times
            case _:
                raise NotImplementedError(how)


def _arrived(got: Got) -> Arrived:
    first_word = str(got.message["Subject"]).split()[0].rstrip(":").lower()
    return Arrived(
        address=got.recipient,
        thread=str(got.message["Message-ID"]).lstrip("<").partition(".")[0],
        status=first_word if first_word in ENDS else "pending",
        text=got.text,
        markup=got.html,
        urls=got.urls,
    )


@pytest.mark.proves("D.138")
class TestEmail(OutageSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[EmailStage]:
        async with mail_server() as server:
            stage = EmailStage(server)
            yield stage
            await stage.channel.close()
