"""What the plane does for channels on which people act, proven with a small channel of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.questions import QuestionForm
from cortex_plane.notify.model.channels import ReasonInput
from cortex_plane.notify.rules import answer_prompt
from tests.channels.interactive_behaviour import InteractiveSuite, ListeningSuite
from tests.channels.plain_channel import PlainChannel, PlainStage, vendor
from tests.fixtures.people import World


class TestPlainChannel(InteractiveSuite):
    @pytest_asyncio.fixture(params=[ReasonInput.REPLY, ReasonInput.FORM])
    async def stage(self, request: pytest.FixtureRequest) -> AsyncIterator[PlainStage]:
        async with vendor() as place:
            stage = PlainStage(place, PlainChannel(request.param))
            yield stage
            await stage.channel.close()

    async def test_words_are_asked_for_as_the_channel_takes_them(
        self, strict: World, admin: asyncpg.Connection, stage: PlainStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        _, message = await self._asked(plane)
        await plane.take(await stage.press("bea", message, "Deny"))
        prompt = (await stage.answers("bea"))[-1]
        assert prompt.startswith("Why is deploy denied?")
        assert ("Reply to this message" in prompt) == (stage.channel.traits.reason is ReasonInput.REPLY)


@pytest.mark.parametrize("is_reply", [True, False])
@pytest.mark.parametrize(
    "form", [None, QuestionForm(question="Where?"), QuestionForm(question="Where?", choices=("Rome",))]
)
def test_only_a_reply_is_asked_for_by_a_reply(form: QuestionForm | None, is_reply: bool) -> None:
    prompt = answer_prompt(form, is_reply=is_reply)
    assert ("Reply to this message" in prompt) == is_reply
    assert ("- Rome" in prompt) == bool(form and form.choices)


class TestListening(ListeningSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[PlainStage]:
        async with vendor() as place:
            stage = PlainStage(place, PlainChannel())
            yield stage
            await stage.channel.close()
