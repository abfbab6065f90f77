"""The suite itself, on the least that a channel can be; and what it would notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from cortex_plane.notify.model.notifications import Card
from tests.channels.behaviour import ChannelSuite, Failure
from tests.channels.postbox import Postbox, PostboxStage
from tests.fixtures.people import World


class Mute(Postbox):
    """Says nothing after its first message."""

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        return not shown


class Deaf(PostboxStage):
    def fail(self, how: Failure, times: int) -> None:
        """It never hears of it, and calls everything delivered."""


class TestPostbox(ChannelSuite):
    @pytest.fixture
    def stage(self) -> PostboxStage:
        return PostboxStage()

    @pytest.mark.proves("D.128")
    async def test_the_suite_notices_a_channel_that_says_nothing_at_the_end(
        self, strict: World, admin: asyncpg.Connection, stage: PostboxStage
    ) -> None:
        stage.channel = Mute()
        with pytest.raises(ValueError, match="not enough values"):
            await self.test_however_it_ends_its_message_says_so(strict, admin, stage, "approved")

    @pytest.mark.proves("D.128")
    async def test_the_suite_notices_a_channel_that_swallows_failures(
        self, strict: World, admin: asyncpg.Connection
    ) -> None:
        with pytest.raises(AssertionError):
            await self.test_what_fails_for_now_is_tried_again_until_it_arrives(strict, admin, Deaf())
