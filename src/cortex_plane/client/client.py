"""The client: ``async with Client(url, key) as plane: await plane.jobs.submit(…)``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from cortex_plane.client.absences import Absences
from cortex_plane.client.access import ACCESS_FILE, HOME, read_access
from cortex_plane.client.approvals import Approvals
from cortex_plane.client.atlases import Atlases
from cortex_plane.client.calls import Calls
from cortex_plane.client.deliveries import Deliveries
from cortex_plane.client.guarding import PATIENCE_SECONDS, WAIT_SECONDS, Answers, F, OnGate, guard
from cortex_plane.client.identities import Identities
from cortex_plane.client.lines import Lines
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
    Workers,
)
from cortex_plane.client.policies import Policies
from cortex_plane.client.resolutions import Resolutions
from cortex_plane.client.signals import Signals
from cortex_plane.client.standing_approvals import StandingApprovals
from cortex_plane.client.tools import ToolConfirmations, Tools
from cortex_plane.client.transport import Transport
from cortex_plane.client.usage import ModelKeys, Usage
from cortex_plane.domain.access import Me
from cortex_plane.domain.errors import Unavailable
from cortex_plane.domain.tools import OnUncertain, Risk


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
        self._headers, self._given_transport = headers, transport
        self.orgs = Orgs(self._transport)
        self.teams = Teams(self._transport)
        self.members = Members(self._transport)
        self.identities = Identities(self._transport)
        self.absences = Absences(self._transport)
        self.keys = Keys(self._transport)
        self.model_keys = ModelKeys(self._transport)
        self.usage = Usage(self._transport)
        self.connections = Connections(self._transport)
        self.agents = Agents(self._transport)
        self.sessions = Sessions(self._transport)
        self.calls = Calls(self._transport)
        self.resolutions = Resolutions(self._transport)
        self.jobs = Jobs(self._transport)
        self.signals = Signals(self._transport)
        self.approvals = Approvals(self._transport)
        self.standing_approvals = StandingApprovals(self._transport)
        self.deliveries = Deliveries(self._transport)
        self.policies = Policies(self._transport)
        self.atlases = Atlases(self._transport)
        self.audit = Audit(self._transport)
        self.workers = Workers(self._transport)
        self.tools = Tools(self._transport)
        self.tool_confirmations = ToolConfirmations(self._transport)

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

    @classmethod
    def from_env(cls) -> Self:
        """A client of CORTEX_URL with CORTEX_KEY, for programs that have no folder of their own."""
        url, key = os.environ.get("CORTEX_URL"), os.environ.get("CORTEX_KEY")
        if not url or not key:
            raise Unavailable(
                "CORTEX_URL or CORTEX_KEY is not set.", hint="Set both; `cortex key create` makes a key."
            )
        return cls(url, key, org=os.environ.get("CORTEX_ORG"))

    @functools.cached_property
    def _lines(self) -> Lines:
        return Lines(self.url, self._headers, self._given_transport)

    def guard(
        self,
        name: str | None = None,
        *,
        agent: str,
        risk: Risk | str = Risk.MEDIUM,
        read_only: bool = False,
        on_uncertain: OnUncertain | str = OnUncertain.ASK_HUMAN,
        timeout: float | None = None,
        wait: float = WAIT_SECONDS,
        patience: float = PATIENCE_SECONDS,
        key: Callable[..., str] | str | None = None,
        probe: Callable[..., Any] | None = None,
        leave_out: Sequence[str] = (),
        answers: Answers | None = None,
        on_gate: OnGate | None = None,
    ) -> Callable[[F], F]:
        """Put a function behind the plane: each call is authorised first, and its outcome is kept.

        ``name`` is the tool's, `module.function` without one. ``wait``: how long a call waits for a person before it raises
        `ApprovalPending`. ``timeout``: how long the function may take; a plain function then runs in a thread of its own.
        ``key``: what names the act, as text or made from the arguments; the same key again never acts twice.
        ``probe`` looks whether an act happened that nobody knows of (`on_uncertain="probe"`), and needs a ``timeout``.
        ``leave_out``: parameters that nobody is shown; all others reach the function as plain JSON copies of what was shown.
        ``answers``: what to answer to gates, by gate and question. ``on_gate`` is asked instead, with the questions of one
        gate, and returns the answers, or None; without an answer the call raises `GateClosed`.
        """
        return guard(
            self._lines, name, agent=agent, risk=risk, read_only=read_only, on_uncertain=on_uncertain, timeout=timeout,
            wait=wait, patience=patience, key=key, probe=probe, leave_out=leave_out, answers=answers, on_gate=on_gate,
        )  # fmt: skip

    async def me(self) -> Me:
        """Who the key stands for, and what it may do."""
        return await self._transport.one(Me, "GET", "/v1/me")

    async def close(self) -> None:
        if "_lines" in self.__dict__:
            await self._lines.aclose()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
