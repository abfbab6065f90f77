"""The org of a play of `test_four_eyes_model.py`, and the acts by which its humans get more identities.

An act either returns what happened, for the list that a failing play prints, or raises `CortexError` and changed nothing.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import asyncpg

from cortex_plane.kernel.errors import CortexError
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.tenancy.model.access import Actor, Grantable, KeyDraft, OwnKeyDraft, Redemption
from cortex_plane.tenancy.model.identities import ConnectionDraft, LinkDraft, MappingDraft
from cortex_plane.tenancy.model.orgs import MemberChange, MemberDraft, Role
from cortex_plane.tenancy.verbs import connections, keys, links, logins, orgs
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.approvals.four_eyes_ledger import Credential, Hook, Ledger
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.tool_confirmations import offered, publish
from tests.fixtures.webhooks import URL
from tests.fixtures.workers import call, make_agent, turn

HUMANS = {
    "Bea": (Role.ADMIN,), "Bob": (Role.ADMIN, Role.APPROVER), "Cal": (Role.APPROVER, Role.OPERATOR), "Dan": (Role.OPERATOR,),
}  # fmt: skip
"""Those who act. Ada set the org up, and does nothing more."""
POLICIES = """\
policies:
  - {{name: two, target: ship, effect: requires_approval, template: dev_review, quorum: 2, self_approval: true,
     approvers: {{roles: [{roles}]}}}}
  - {{name: careful, target: refund, when: 'risk == "high"', effect: requires_approval, template: dev_review, on_deny: continue,
     standing: true, approvers: {{roles: [admin]}}, self_approval: false}}
  - {{name: four-eyes, target: refund, effect: requires_approval, template: dev_review, on_deny: continue, standing: true,
     approvers: {{roles: [{roles}]}}, self_approval: false}}
"""
ROLES = ("approver, admin", "approver, admin, operator", "admin, approver, steward")


def nothing() -> CortexError:
    """There is nothing to act on."""
    return CortexError("There is none.", code="none")


class Stage:
    """An org, its humans with their identities, and the model of who did what."""

    def __init__(self, world: World, admin: asyncpg.Connection, clock: Clock, seed: int) -> None:
        self.world, self.db, self.admin, self.clock = world, world.db, admin, clock
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        self.credentials: list[Credential] = []
        self.accounts: dict[UUID, str] = {}
        self.mains: dict[str, UUID] = {}
        self.taken: set[UUID] = set()
        """Accounts that somebody else once redeemed a code of."""
        self.codes: list[tuple[str, UUID, str]] = []
        self.link_codes: list[tuple[str, str]] = []
        self.hooks: list[Hook] = []
        self.elsewhere: dict[UUID, Credential] = {}
        """Calls that run elsewhere, and who asked for them."""
        self.orders: list[int] = []
        """What waiters wait for."""
        self.story: list[str] = []
        """What was done so far."""
        self.sent: list[UUID] = []
        self.numbers = iter(range(1, 10_000))
        self.app = App("tests")
        self._tools()

    def _tools(self) -> None:
        async def send(ctx: ToolContext) -> str:
            self.sent.append(ctx.invocation_id)
            if self.chance.random() < 0.5:
                raise RuntimeError("the connection broke")
            return "done"

        @self.app.tool(timeout=5, on_uncertain="ask_human")
        async def ship(n: str, ctx: ToolContext) -> str:
            return await send(ctx)

        @self.app.tool(timeout=5, on_uncertain="ask_human")
        async def refund(n: str, ctx: ToolContext) -> str:
            return await send(ctx)

        async def waiter(ctx: Context) -> str:
            told = await ctx.wait_event("payee", key=f"order-{ctx.payload.get('order')}")
            return str(await ctx.tool("refund", n=str(told)))

        self.app.agent("waiter")(waiter)

    async def set_up(self) -> None:
        for name, roles in HUMANS.items():
            person = await self.world.person(*roles, name=name)
            self.mains[name], self.accounts[person.member_id] = person.member_id, name
            self.credentials.append(Credential(name, person.secret, name, person.member_id))
        await policies.apply_policies(self.db, self.world.admin.actor, PolicyFile(text=POLICIES.format(roles=ROLES[0])))
        for slug, script in {"clerk": ["refund", "refund"], "mover": ["ship", "refund"]}.items():
            await make_agent(self.world, self.script(script), slug=slug)
            self.ledger.agents[slug, 1] = "Ada"
        await make_agent(self.world, [], slug="waiter", run="waiter")
        self.ledger.agents["waiter", 1] = "Ada"
        await publish(self.db, offered("refund"))

    def script(self, tools: list[str]) -> list[dict[str, Any]]:
        return [turn(call(tool, n=str(self.chance.randint(1, 2)))) for tool in tools]

    # Identities ---------------------------------------------------------------------------------------------------

    async def add(self, by: Actor, who: Credential) -> str:
        """An account that nobody else asked for."""
        roles = self.chance.choice(
            [[Role.APPROVER], [Role.ADMIN, Role.APPROVER], [Role.ADMIN, Role.APPROVER], [Role.OPERATOR]]
        )
        name = f"{who.holder}'s {next(self.numbers)}"
        member = await orgs.create_member(self.db, by, MemberDraft(display_name=name, roles=roles))
        self.accounts[member.id] = name
        code = await logins.issue_enrolment_code(self.db, by, member.id)
        self.codes.append((who.holder, member.id, code.code))
        return f"adds {name} ({', '.join(roles)}) and keeps the code; " + await self.redeem(by, who)

    async def issue(self, by: Actor, who: Credential) -> str:
        """A code for somebody who is there, to be in their place."""
        account = self.chance.choice(list(self.accounts))
        code = await logins.issue_enrolment_code(self.db, by, account)
        self.codes.append((who.holder, account, code.code))
        return f"keeps a code for {self.accounts[account]}"

    async def redeem(self, by: Actor, who: Credential) -> str:
        own = [each for each in self.codes if each[0] == who.holder]
        if not own:
            raise nothing()
        _, account, code = own[-1]
        self.codes.remove(own[-1])
        if self.chance.random() < 0.5:
            secret = await logins.redeem_for_session(self.db, code)
        else:
            made = await logins.redeem_for_key(self.db, Redemption(code=code, key_name="enrolled"))
            secret = str(made.secret)
        self._hold(who.holder, account, secret)
        return f"redeems the code of {self.accounts[account]}"

    async def hand_over(self, by: Actor, who: Credential) -> str:
        """A code that its own person redeems."""
        human = self.chance.choice(list(self.mains))
        code = await logins.issue_enrolment_code(self.db, by, self.mains[human])
        made = await logins.redeem_for_key(self.db, Redemption(code=code.code, key_name="own"))
        self._hold(human, self.mains[human], str(made.secret))
        return f"enrols {human}, who redeems the code"

    def _hold(self, holder: str, account: UUID, secret: str) -> None:
        if self.mains.get(holder) != account:
            self.taken.add(account)
        self.credentials.append(Credential(holder, secret, self.accounts[account], account))

    async def promote(self, by: Actor, who: Credential) -> str:
        account = self.chance.choice(list(self.accounts))
        change = MemberChange(roles=[Role.ADMIN, Role.APPROVER, Role.OPERATOR])
        await orgs.update_member(self.db, by, account, change, None)
        return f"promotes {self.accounts[account]}"

    async def make_key(self, by: Actor, who: Credential) -> str:
        if self.chance.random() < 0.3:
            own = await keys.create_own_key(self.db, by, OwnKeyDraft(name="another"))
            self.credentials.append(Credential(who.holder, str(own.secret), who.label, who.account))
            return "makes another key"
        roles, granted = [self.chance.choice([Role.ADMIN, Role.OPERATOR, Role.MEMBER])], list(Grantable)
        draft = KeyDraft(name="program", roles=roles, permissions=granted if who.account else [])
        made = await keys.create_key(self.db, by, draft)
        label = f"{who.holder}'s program {next(self.numbers)}"
        self.credentials.append(Credential(who.holder, str(made.secret), label))
        return f"makes {label} ({roles[0]})"

    async def link(self, by: Actor, who: Credential) -> str:
        """A code that a human types on a channel of their own, now or later. Only whoever was always there proves something."""
        own = [each for each in self.link_codes if each[0] == who.holder]
        if own and self.chance.random() < 0.7:
            self.link_codes.remove(own[-1])
            draft = LinkDraft(code=own[-1][1], external_user_id=f"chat-{who.holder}")
            await links.redeem_link_code(self.db, self.world.service.actor, self.world.connection.id, draft)
            return "types a code in a chat"
        if who.account != self.mains[who.holder] or who.account in self.taken:
            raise nothing()
        code = await links.issue_link_code(self.db, by)
        self.link_codes.append((who.holder, code.code))
        return "gets a code for a chat"

    async def unlink(self, by: Actor, who: Credential) -> str:
        account = self.chance.choice(list(self.mains.values()))
        page = await orgs.list_member_mappings(self.db, by, account, None, 10)
        for mapping in page.items:
            await connections.unlink_member(self.db, by, account, mapping.id)
        return f"takes {len(page.items)} channels from {self.accounts[account]}"

    async def connect(self, by: Actor, who: Credential) -> str:
        """A webhook, or one's own secret for one; and whose a name behind it is."""
        name = f"hook {next(self.numbers)}"
        if self.hooks and self.chance.random() < 0.3:
            old = self.chance.choice(self.hooks)
            rotated = await connections.rotate_secret(self.db, by, old.id)
            hook = Hook(who.holder, old.id, rotated.secret, old.label, old.names)
        else:
            draft = ConnectionDraft(channel_type="webhook", name=name, url=URL)
            made = await connections.create_connection(self.db, by, draft)
            hook = Hook(who.holder, made.id, str(made.secret), name)
        self.hooks.append(hook)
        return f"sets the secret of {hook.label}; " + await self.map_name(by, who)

    async def map_name(self, by: Actor, who: Credential) -> str:
        if not self.hooks:
            raise nothing()
        hook, account = self.hooks[-1], self.chance.choice(list(self.accounts))
        name = f"name-{self.accounts[account]}"
        draft = MappingDraft(member_id=account, external_user=name)
        await connections.map_member(self.db, by, hook.id, draft)
        hook.names[name] = account
        return f"maps {self.accounts[account]} behind {hook.label}"
