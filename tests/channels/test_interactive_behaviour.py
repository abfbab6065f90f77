"""What the plane does for channels on which people act, proven with a small channel of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cortex_plane.notify.model.channels import ReasonInput
from tests.channels.interactive_behaviour import InteractiveSuite, ListeningSuite
from tests.channels.plain_channel import PlainChannel, PlainStage, vendor


class TestPlainChannel(InteractiveSuite):
    @pytest_asyncio.fixture(params=[ReasonInput.REPLY, ReasonInput.FORM])
    async def stage(self, request: pytest.FixtureRequest) -> AsyncIterator[PlainStage]:
        async with vendor() as place:
            stage = PlainStage(place, PlainChannel(request.param))
            yield stage
            await stage.channel.close()


class TestListening(ListeningSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[PlainStage]:
        async with vendor() as place:
            stage = PlainStage(place, PlainChannel())
            yield stage
            await stage.channel.close()
