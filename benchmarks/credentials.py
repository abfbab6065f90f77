"""Decisions by token and by signed link against decisions by id, over HTTP, in one run."""

from __future__ import annotations

import html
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx

from benchmarks.approvals import copies, waiting
from benchmarks.ingest import serve
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import Plane
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.approvals.store import insert_tokens
from cortex_plane.approvals.verbs import credentials
from cortex_plane.tenancy.verbs import keys

ROUNDS, EACH = 5, 40
AIM = 1.2

Decide = Callable[[UUID], Awaitable[float]]


class Doors:
    """The same decision, three ways. What comes before the decision itself, a mail or a page, is not timed."""

    def __init__(self, made: Plane, asked: Any, http: httpx.AsyncClient, secret: str) -> None:
        self._made, self._asked, self._http = made, asked, http
        self._key = {"Authorization": f"Bearer {secret}"}

    async def by_id(self, id: UUID) -> float:
        body = {"decision": "approved", "version": self._asked.version, "input_hash": self._asked.input_hash}
        return await self._timed(f"/v1/approvals/{id}/decide", json=body, headers=self._key)

    async def by_token(self, id: UUID) -> float:
        async with self._made.db.transaction(self._made.actor.org_id) as tx:
            token, row = credentials.draft_token(
                tx, approval_id=id, member_id=self._member, notification_id=None, version=self._asked.version,
                input_hash=self._asked.input_hash, expires_at=self._asked.deadline,
            )  # fmt: skip
            await insert_tokens(tx, [row])
        return await self._timed("/v1/approvals/decide", json={"token": token, "decision": "approved"})

    async def by_link(self, id: UUID) -> float:
        async with self._made.db.transaction(self._made.actor.org_id) as tx:
            links = credentials.sign_links(
                await credentials.signing_secret(self._made.db, tx), approval_id=id, member_id=self._member, channel="email",
                deadline=self._asked.deadline, public_url="",
            )  # fmt: skip
        link = links[Choice.APPROVED]
        page = await self._http.get(link)
        fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.text)
        form = {name: html.unescape(value) for name, value in fields}
        return await self._timed(link, data=form)

    @property
    def _member(self) -> UUID:
        if self._made.actor.user_account_id is None:
            raise RuntimeError("the plane's admin is a person")
        return self._made.actor.user_account_id

    async def _timed(self, path: str, **sent: Any) -> float:
        started = time.perf_counter()
        answer = await self._http.post(path, **sent)
        taken = time.perf_counter() - started
        if answer.status_code not in (200, 303):
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
        return taken


async def ratios(url: str, rounds: int, each: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {}
    async with waiting(url) as (made, asked, connection):
        secret = str(await keys.issue_key_for_owner(made.db))
        server, port = await serve(made.app_url)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
                doors = Doors(made, asked, http, secret)
                ways: dict[str, Decide] = {"id": doors.by_id, "token": doors.by_token, "link": doors.by_link}
                for number in range(rounds + 1):
                    for name, decide in ways.items():
                        times = [await decide(id) for id in await copies(connection, asked, each)]
                        if number:  # the first round warms up
                            taken.setdefault(name, []).append(statistics.median(times))
        finally:
            server.terminate()
            await server.wait()
    return {name: statistics.median(times) for name, times in taken.items()}


async def run(admin_url: str, *, rounds: int = ROUNDS, each: int = EACH) -> bool:
    async with fresh_database(admin_url, "doors") as url:
        taken = await ratios(url, rounds, each)
    print(f"\n{'a decision over HTTP':36}{'p50 ms':>10}{'by id is 1':>12}{'aim':>8}")
    met = True
    for name, seconds in taken.items():
        ratio = seconds / taken["id"]
        missed = ratio > AIM
        met = met and not missed
        print(f"{f'  by {name}':36}{seconds * 1e3:>10.2f}{ratio:>12.2f}{f'< {AIM}':>8}{'  MISSED' if missed else ''}")
    return met
