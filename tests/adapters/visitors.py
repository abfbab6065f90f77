"""People in front of pages: they log in by a link, keep a cookie, and fill in forms as a browser does."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import httpx

from cortex_plane.agents.model.agents import Agent
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import logins
from cortex_plane.worker.tools.app import App
from tests.people import Person, World
from tests.runtime.planes import FAST, call, make_agent, turn, until, working

SENT: list[dict[str, Any]] = []
"""What the tools did to the outside world."""


def shop(name: str = "shop") -> App:
    app = App(name)

    @app.tool(risk="medium")
    async def order(item: str, count: int = 1) -> str:
        """Orders something."""
        SENT.append({"item": item, "count": count})
        return f"ordered {count}"

    @app.tool(risk="critical")
    async def destroy(place: str) -> str:
        """Destroys a place."""
        SENT.append({"destroyed": place})
        return "gone"

    return app


async def shopper(
    world: World, *calls: dict[str, Any], slug: str = "shopper", text: str = "I order."
) -> Agent:
    return await make_agent(world, [turn(*calls, text=text)], app="shop", slug=slug)


@asynccontextmanager
async def open_shop(world: World) -> AsyncIterator[None]:
    SENT.clear()
    async with working(world.db, shop(), settings=replace(FAST, adoption_seconds=60)):
        yield


async def asked(
    world: World,
    *calls: dict[str, Any],
    by: Person | None = None,
    slug: str = "shopper",
    message: str = "two, please",
) -> Approval:
    """A job that waits for a person, as its request is shown to whoever submitted it. If they may, they wrote the agent too: both are
    causes, and nobody else is."""
    wrote = by if by is not None and Role.ADMIN in by.actor.roles else world.admin
    agent = await shopper(
        replace(world, admin=wrote), *(calls or (call("order", item="tea", count=2),)), slug=slug
    )
    actor = (by or world.admin).actor
    job = await jobs.submit(world.db, actor, JobDraft(agent=agent.slug, payload={"text": message}))
    await until(world, job.id, JobStatus.WAITING_FOR_APPROVAL)
    page = await approvals.list_approvals(world.db, actor, None, 10, job_id=job.id)
    return page.items[0]


@dataclass
class Visitor:
    """Somebody with a browser, and without scripts."""

    http: httpx.AsyncClient
    cookie: str

    @classmethod
    async def log_in(cls, http: httpx.AsyncClient, world: World, person: Person | None = None) -> Visitor:
        link = await logins.issue_own_login_link(world.db, (person or world.admin).actor)
        answer = await http.post(link.url_path)
        assert answer.status_code == 303, answer.text
        cookie = answer.cookies["cortex_session"]
        http.cookies.clear()
        return cls(http, cookie)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers={"Cookie": f"cortex_session={self.cookie}", **headers})

    async def send(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        """A form as it is, whatever stands in it."""
        given = {"Cookie": f"cortex_session={self.cookie}", **headers}
        return await self.http.post(path, data=fields, headers=given)

    async def submit(self, page: httpx.Response, action: str, **changes: str) -> httpx.Response:
        """The form of a page that goes to ``action``, with some fields filled in."""
        return await self.send(action, {**fields_of(page.text, action, changes.get("decision")), **changes})

    async def decide(self, id: UUID, decision: str, **changes: str) -> httpx.Response:
        """Open the card and press a button."""
        page = await self.get(f"/approvals/{id}")
        return await self.submit(page, f"/approvals/{id}/decide", decision=decision, **changes)


def fields_of(page: str, action: str, decision: str | None = None) -> dict[str, str]:
    """The hidden and text fields of a form, as a browser would send them."""
    forms = re.findall(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)
    for form in forms:
        inputs = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)
        areas = re.findall(r'<textarea[^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL)
        fields = {name: html.unescape(value) for name, value in [*inputs, *areas]}
        if decision is None or fields.get("decision") == decision:
            return fields
    raise AssertionError(f"no such form goes to {action}")


async def settled(world: World, job_id: UUID) -> JobStatus:
    job = await until(world, job_id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
    return job.status
