"""The client: ``async with Client(url, key) as plane: await plane.jobs.submit(…)``."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from cortex_plane.client.absences import Absences
from cortex_plane.client.access import ACCESS_FILE, HOME, read_access
from cortex_plane.client.approvals import Approvals
from cortex_plane.client.deliveries import Deliveries
from cortex_plane.client.identities import Identities
from cortex_plane.client.nouns import (
    Agents,
    Audit,
    Connections,
    Jobs,
    Keys,
    Members,
    Orgs,
    Sessions,
    Teams,
    Tools,
    Workers,
)
from cortex_plane.client.policies import Policies
from cortex_plane.client.standing_approvals import StandingApprovals
from cortex_plane.client.transport import Transport
from cortex_plane.domain.access import Me
from cortex_plane.domain.errors import Unavailable


class Client:
    """Speaks to one plane with one key. Every error that the plane reports is raised as a ``CortexError``."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        org: str | None = None,
        timeout: float = 60,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``org`` is for platform keys: the slug of the org to act in. Without a key only tokens decide."""
        self.url = url
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        if org is not None:
            headers["Cortex-Org"] = org
        # No proxies from the environment: a key must not pass through a machine that nobody named here.
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, transport=transport, trust_env=False
        )
        self._transport = Transport(self._http)
        self.orgs = Orgs(self._transport)
        self.teams = Teams(self._transport)
        self.members = Members(self._transport)
        self.identities = Identities(self._transport)
        self.absences = Absences(self._transport)
        self.keys = Keys(self._transport)
        self.connections = Connections(self._transport)
        self.agents = Agents(self._transport)
        self.sessions = Sessions(self._transport)
        self.jobs = Jobs(self._transport)
        self.approvals = Approvals(self._transport)
        self.standing_approvals = StandingApprovals(self._transport)
        self.deliveries = Deliveries(self._transport)
        self.policies = Policies(self._transport)
        self.audit = Audit(self._transport)
        self.workers = Workers(self._transport)
        self.tools = Tools(self._transport)

    @classmethod
    def here(cls, home: Path = HOME) -> Self:
        """A client of the plane that `cortex up` started in this folder, or of CORTEX_URL with CORTEX_KEY."""
        kept = read_access(home)
        url = os.environ.get("CORTEX_URL") or kept.get("url")
        # The kept key is for the kept address: it must not travel to another one.
        key = os.environ.get("CORTEX_KEY") or (kept.get("key") if url == kept.get("url") else None)
        if not url or not key:
            raise Unavailable(
                f"There is no plane to talk to: neither CORTEX_URL with CORTEX_KEY nor {home / ACCESS_FILE}.",
                hint="Start one here with `make up`, or set both CORTEX_URL and CORTEX_KEY.",
            )
        return cls(url, key, org=os.environ.get("CORTEX_ORG"))

    @classmethod
    def without_key(cls, home: Path = HOME) -> Self:
        """For whoever has a token and no key: a client of CORTEX_URL, or of the plane in this folder."""
        url = os.environ.get("CORTEX_URL") or read_access(home).get("url")
        if not url:
            raise Unavailable(
                f"There is no plane to talk to: neither CORTEX_URL nor {home / ACCESS_FILE}.",
                hint="Start one here with `make up`, or set CORTEX_URL.",
            )
        return cls(url, None)

    async def me(self) -> Me:
        """Who the key stands for, and what it may do."""
        return await self._transport.one(Me, "GET", "/v1/me")

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
