"""What channels must do on which people decide by commands in comments, and the side of the stage that is the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice
from cortex_plane.approvals.verbs import approvals
from cortex_plane.notify.model.channels import read_button
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.tenancy.model.orgs import OrgChange, OrgSettingsChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.channels.behaviour import ASK, Deploying, Failure
from tests.channels.comment_behaviour import rendered, visible
from tests.channels.interactive_behaviour import InteractiveStage, InteractiveSuite, Plane, SeenMessage
from tests.fixtures.approvals import decide, shown, waiting
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import call

PEOPLE = {name: 1001 + n for n, name in enumerate(("bea", "mia", "sam", "tom", "dan", "cyd"))}
_COMMAND = re.compile(
    r"^\s*(/(?:cortex )?(approve|deny|respond) [a-z2-7]{8}(?:-\d+)?) (?:\[reason\]|reason|your answer)$", re.MULTILINE
)
_CARD = "<!-- cortex-plane "
_DONE = {"approve ": "Approved.", "deny ": "Denied.", "respond ": "Your answer was sent."}


class CommentLog(Protocol):
    """What an emulator has of the plane."""

    place: str

    def written(self) -> Sequence[tuple[int, str]]:
        """The comments of the plane as they are now, oldest first."""
        ...

    def reactions(self) -> Sequence[tuple[int, str]]:
        """To comments of people: the number of the comment, and what a reader makes of it."""
        ...

    async def say(self, name: str, id: int, text: str) -> tuple[int, VendorRequest]:
        """The number of a new comment, and the webhook about it."""
        ...

    def signed_by_nobody(self, headers: Mapping[str, str]) -> dict[str, str]: ...


class VendorStage(Protocol):
    @property
    def channel(self) -> InteractiveChannel: ...

    async def connect(self, world: World) -> UUID: ...

    def fail(self, how: Failure, times: int) -> None: ...


class CommentStage:
    """People who write comments in one place."""

    def __init__(self, stage: VendorStage, log: CommentLog) -> None:
        self.channel, self.log = stage.channel, log
        self._stage = stage
        self._last: dict[str, str] = {}
        self._acts: list[tuple[int, str, str]] = []
        """The number of each comment, who wrote it, and the words."""

    async def connect(self, world: World) -> UUID:
        return await self._stage.connect(world)

    def fail(self, how: Failure, times: int) -> None:
        self._stage.fail(how, times)

    def address(self, name: str) -> str:
        return str(PEOPLE[name])

    async def messages(self) -> list[SeenMessage]:
        cards_and_replies = [(id, body) for id, body in self.log.written() if body.startswith((_CARD, "**"))]
        return [
            SeenMessage(ref=str(id), chat=self.log.place, text=visible(rendered(body)), buttons=_buttons(body))
            for id, body in cards_and_replies
        ]

    async def answers(self, name: str) -> list[str]:
        """A comment answers whoever wrote last before it; a thumb up says that what the command asked for was done."""
        texts = {id: text for id, _, text in self._acts}
        answers = [
            (id, visible(rendered(body)).strip())
            for id, body in self.log.written()
            if not body.startswith((_CARD, "**"))
        ]
        for id, reaction in self.log.reactions():
            done = next(words for verb, words in _DONE.items() if verb in texts[id])
            answers.append((id, done if reaction == "+1" else reaction))
        return [text for id, text in sorted(answers) if self._author(id) == name]

    def _author(self, id: int) -> str:
        return [author for own, author, _ in self._acts if own <= id][-1]

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        return await self._command(name, message.buttons[label])

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        button = read_button(data)
        assert button is not None
        prefix = "/cortex " if self.channel.channel_type == "gitlab" else "/"
        return await self._command(name, f"{prefix}{button.action.name.lower()} {button.short_id}")

    def remember(self, name: str, command: str) -> None:
        """The next words of this person go with this command."""
        self._last[name] = command

    async def _command(self, name: str, command: str) -> VendorRequest:
        self.remember(name, command)
        return await self._say(name, command)

    async def words(self, name: str, text: str) -> VendorRequest:
        return await self._say(name, f"{self._last[name]} {text}")

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        if attachments:
            raise NotImplementedError
        return await self._say(name, f"/cortex {text}")

    async def _say(self, name: str, text: str) -> VendorRequest:
        id, request = await self.log.say(name, PEOPLE[name], text)
        self._acts.append((id, name, text))
        return request

    def forge(self, request: VendorRequest) -> VendorRequest:
        headers = self.log.signed_by_nobody(request.headers)
        return VendorRequest(method=request.method, query=request.query, headers=headers, body=request.body)


def _buttons(body: str) -> dict[str, Any]:
    return {match[2].capitalize(): match[1] for match in _COMMAND.finditer(body)}


class CommentInteractiveSuite(InteractiveSuite):
    """One card in one place, for everybody who may decide."""

    place: str
    channel_type: str

    async def _plane(self, world: World, admin: asyncpg.Connection, stage: InteractiveStage) -> Plane:
        place = f'channels: [{{{self.channel_type}: "{self.place}"}}]'
        self.policies = ASK.replace("timeout: 1d", f"timeout: 1d, {place}")
        return await super()._plane(world, admin, stage)

    async def test_every_ended_copy_has_no_live_button(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        assert len(await stage.messages()) == 1
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED
        assert not await self._has_live_buttons(plane)

    async def test_guests_are_refused_where_the_org_does_not_allow_them(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        """In silence: others read what would be said."""
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin)
        settings = OrgSettingsChange(guests_may_chat=False)
        await orgs.update_org(strict.db, strict.admin.actor, OrgChange(settings=settings), None)
        await plane.take(await stage.write("sam", "Hello"))
        assert await stage.answers("sam") == []
        assert await admin.fetchval("select count(*) from message") == 0

    async def test_command_with_its_reason_denies_at_once(
        self, strict: World, admin: asyncpg.Connection, stage: CommentStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        stage.remember("bea", message.buttons["Deny"])
        await plane.take(await stage.words("bea", "too early"))
        approval = await shown(strict, asked.id)
        assert (approval.status, approval.resolution_reason) == (ApprovalStatus.DENIED, "too early")

    async def test_command_means_a_card_of_its_own_place(
        self, strict: World, admin: asyncpg.Connection, stage: CommentStage
    ) -> None:
        """An id of another place is unknown here, even to somebody who may decide."""
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        await admin.execute("update notification set address = address || '9' where approval_id = $1", asked.id)
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        assert "No request in this place has this id" in (await stage.answers("bea"))[-1]

    async def test_approval_is_refused_where_the_card_shows_no_arguments(
        self, strict: World, admin: asyncpg.Connection, stage: CommentStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        await admin.execute("update notification set shown = '{\"arguments\": false}' where approval_id = $1", asked.id)
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        assert "does not show what you would approve" in (await stage.answers("bea"))[-1]
        await plane.take(await stage.press("bea", message, "Deny"))
        await plane.take(await stage.words("bea", "no"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.DENIED

    async def test_two_people_decide_in_one_place(
        self, strict: World, admin: asyncpg.Connection, stage: CommentStage
    ) -> None:
        """Each command is judged by who wrote it; with a quorum of two, one person's two commands are one vote."""
        plane = await self._plane(strict, admin, stage)
        self.policies = self.policies.replace("timeout: 1d", "timeout: 1d, quorum: 2")
        cyd = await strict.person(Role.APPROVER, name="Cyd")
        await apply_policies(strict.db, strict.admin.actor, self.policies)
        _, (asked,) = await waiting(strict, Deploying(), call("deploy", plan={"to": "production"}))
        await plane.send()
        message = (await stage.messages())[-1]
        for _ in range(2):
            await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        await decide(strict, await shown(strict, asked.id), Choice.APPROVED, by=cyd)
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert details.approval.status is ApprovalStatus.APPROVED
        assert len(details.votes) == 2
