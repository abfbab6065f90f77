"""Who does what next in a play of `test_four_eyes_model.py`.

Acts that only follow each other by chance come together too rarely to find what one missing rule lets through: so every now and then
comes an episode, in which one human shapes a call in one way and tries to decide it. Before, between and within episodes everything is
random: who, with which of their identities, about what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cortex_plane.tenancy.model.access import Actor
from tests.approvals.four_eyes_ledger import Credential

if TYPE_CHECKING:
    from tests.approvals.four_eyes_play import Play

Act = Callable[[Actor, Credential], Awaitable[str]]
Scene = list[tuple[str, Act]]
"""Who does what, in this order."""


class Plot:
    def __init__(self, play: Play) -> None:
        self.play, self.chance = play, play.chance
        self.leader = self.chance.choice(["Bea", "Bob"])
        """Who votes most."""
        self.due: Scene = []
        self.done: set[Act] = set()
        """What succeeded so far."""
        self.identities: dict[Act, int] = {
            play.add: 5, play.issue: 1, play.redeem: 1, play.hand_over: 1, play.promote: 1, play.make_key: 4, play.link: 2,
            play.unlink: 1, play.connect: 4, play.map_name: 2,
        }  # fmt: skip
        self.acts = self._choose_acts()

    def _choose_acts(self) -> dict[str, dict[Act, int]]:
        """What each human does, with how often they try it. Everybody leaves out half of what shapes calls: whoever does all of it
        is a cause of every call many times over, and then it does not show where one of these causes is missing."""
        play = self.play
        deciding: dict[Act, int] = {
            play.vote: 20, play.settle: 6, play.vote_by_hook: 6, play.delegate: 3, play.be_absent: 2, play.work: 12, play.begin: 6,
            play.doubt: 4, play.wait: 1,
        }  # fmt: skip
        shaping: dict[Act, int] = {
            play.submit: 6, play.await_payee: 3, play.ask: 6, play.resubmit: 4, play.message: 4, play.bring: 3, play.signal: 4,
            play.write_context: 2, play.rewrite: 2, play.change_policies: 2, play.confirm: 2, play.cancel: 2,
        }  # fmt: skip
        optional = shaping | self.identities
        return {
            human: deciding | {act: n for act, n in optional.items() if self.chance.random() < 0.5}
            for human in play.mains
        }

    def next(self) -> tuple[str, Act]:
        if not self.due and self.chance.random() < 0.4:
            self.due = self._episode()
        if self.due:
            return self.due.pop(0)
        human = self.leader if self.chance.random() < 0.4 else self.chance.choice(list(self.acts))
        return human, self._one_of(self.acts[human])

    def _one_of(self, acts: dict[Act, int]) -> Act:
        """What did not happen yet comes sooner."""
        return self.chance.choices(list(acts), [n if act in self.done else 3 * n for act, n in acts.items()])[0]

    def _episode(self) -> Scene:
        play, me = self.play, self.leader
        others = [name for name in self.acts if name != me]
        other = self.chance.choice([name for name in others if name != "Dan"])  # who is no approver
        one = self.chance.choice([name for name in others if name != other])
        vote = self.chance.choice((play.vote, play.vote, play.vote_by_hook))
        rules = self.chance.choice((play.change_policies, play.confirm, play.delegate, play.be_absent))
        decide: Scene = [(me, vote), (me, play.vote), (other, play.vote), (me, play.work), (one, play.begin)]
        answer: Scene = [(one, play.doubt), (me, play.settle), (other, play.settle), (me, play.begin)]
        more: Scene = [(me, self._one_of(self.identities)) for _ in range(2)]
        return [
            *more, *self._shaping(me, one, other), (me, play.work),
            *decide, *answer, (self.chance.choice(others), rules), (me, play.work), *decide,
        ]  # fmt: skip

    def _shaping(self, me: str, one: str, other: str) -> Scene:
        play = self.play
        ways: list[Scene] = [
            [(me, play.submit)],
            [(me, play.submit)],
            [(me, play.ask)],
            [(me, play.message)],
            [(one, play.ask), (me, play.ask)],
            [(one, play.submit), (me, play.message)],
            [(one, play.submit), (me, play.bring)],
            [(one, play.submit), (me, play.write_context)],
            [(me, play.rewrite), (one, play.submit)],
            [(me, play.submit), (one, play.cancel), (other, play.resubmit)],
            [(one, play.await_payee), (me, play.work), (me, play.signal)],
            [(one, play.submit), (me, play.work), (me, play.vote), (me, play.submit)],
            [(one, play.message), (me, play.work), (me, play.vote), (me, play.message)],
        ]
        return self.chance.choice(ways)
