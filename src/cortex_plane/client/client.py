"""The client: ``async with Client(url, key) as plane: await plane.jobs.submit(…)``."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import httpx

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.client.access import ACCESS_FILE, plane_home, read_access
from cortex_plane.client.transport import Plane, Transport
from cortex_plane.kernel.errors import Unavailable
from cortex_plane.kernel.fields import Risk

if TYPE_CHECKING:
    from cortex_plane.client.agents import Agents, Atlases, Platform, Policies, ToolConfirmations, Tools
    from cortex_plane.client.approvals import Approvals, Audit, Deliveries, StandingApprovals
    from cortex_plane.client.guarding import Answers, F, Lines, OnGate
    from cortex_plane.client.jobs import Jobs, Signals, Usage, Workers
    from cortex_plane.client.sessions import Calls, Resolutions, Sessions
    from cortex_plane.client.tenancy import Absences, Connections, Identities, Keys, Members, ModelKeys, Orgs, Teams
    from cortex_plane.tenancy.model.access import Me

WAIT_SECONDS = 300.0
PATIENCE_SECONDS = 10.0


def _noun(module: str, name: str) -> Any:
    """A noun, imported when it is first used: most programs use two or three of them."""
    return cached_property(
        lambda client: getattr(import_module(f"cortex_plane.client.{module}"), name)(client.transport)
    )


def _find_plane(home: Path, key: str | None = None) -> tuple[str, str, str | None]:
    """Address, key and org, from the environment or the file in the plane's directory. ``key``: one that is known already."""
    access = read_access(home)
    url = os.environ.get("CORTEX_URL") or access.get("url")
    known_key = key or os.environ.get("CORTEX_KEY")
    is_named = bool(os.environ.get("CORTEX_URL") or os.environ.get("CORTEX_HOME"))
    if url and known_key and not is_named and known_key != access.get("key"):
        # Whoever can write a file into this folder, such as a repository, would get the key sent to an address of theirs.
        raise Unavailable(
            f"There is a key, but nobody said which plane it is for: the address {url} stands in a folder, and the key does not go there.",
            hint="Set CORTEX_URL, or CORTEX_HOME to the directory of the plane; or unset CORTEX_KEY to use the key of the folder.",
        )
    # The stored key is for the stored address: it must not travel to another one.
    key = known_key or (access.get("key") if url == access.get("url") else None)
    if not url or not key:
        raise Unavailable(
            f"There is no plane to talk to: neither CORTEX_URL with CORTEX_KEY nor {home / ACCESS_FILE}.",
            hint="Start one here with `make up`, or set both CORTEX_URL and CORTEX_KEY.",
        )
    return url, key, os.environ.get("CORTEX_ORG")


class Client:
    """Speaks to one plane with one key. Every error that the plane reports is raised as a ``CortexError``."""

    orgs: Orgs = _noun("tenancy", "Orgs")
    teams: Teams = _noun("tenancy", "Teams")
    members: Members = _noun("tenancy", "Members")
    identities: Identities = _noun("tenancy", "Identities")
    absences: Absences = _noun("tenancy", "Absences")
    keys: Keys = _noun("tenancy", "Keys")
    model_keys: ModelKeys = _noun("tenancy", "ModelKeys")
    usage: Usage = _noun("jobs", "Usage")
    connections: Connections = _noun("tenancy", "Connections")
    agents: Agents = _noun("agents", "Agents")
    sessions: Sessions = _noun("sessions", "Sessions")
    calls: Calls = _noun("sessions", "Calls")
    resolutions: Resolutions = _noun("sessions", "Resolutions")
    jobs: Jobs = _noun("jobs", "Jobs")
    signals: Signals = _noun("jobs", "Signals")
    approvals: Approvals = _noun("approvals", "Approvals")
    standing_approvals: StandingApprovals = _noun("approvals", "StandingApprovals")
    deliveries: Deliveries = _noun("approvals", "Deliveries")
    policies: Policies = _noun("agents", "Policies")
    platform: Platform = _noun("agents", "Platform")
    atlases: Atlases = _noun("agents", "Atlases")
    audit: Audit = _noun("approvals", "Audit")
    workers: Workers = _noun("jobs", "Workers")
    tools: Tools = _noun("agents", "Tools")
    tool_confirmations: ToolConfirmations = _noun("agents", "ToolConfirmations")

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        org: str | None = None,
        timeout: float = 60,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Without a ``url``, the plane of CORTEX_URL with CORTEX_KEY, or else the one that `cortex up` started in this folder (or
        CORTEX_HOME). ``org`` is for platform keys: the slug of the org to act in. With a ``url`` and no key only tokens decide."""
        if url is None:
            url, known_key, known_org = _find_plane(plane_home(), key)
            key, org = key or known_key, org or known_org
        self.url = url
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        if org is not None:
            headers["Cortex-Org"] = org
        self._address = Plane(url, headers, transport)
        self.transport = Transport(self._address, timeout)

    @classmethod
    def here(cls, home: Path | None = None) -> Self:
        """A client of the plane that `cortex up` started in this folder (or CORTEX_HOME), or of CORTEX_URL with CORTEX_KEY."""
        url, key, org = _find_plane(home or plane_home())
        return cls(url, key, org=org)

    @classmethod
    def without_key(cls, home: Path | None = None) -> Self:
        """For people with a token and no key: a client of CORTEX_URL, or of the plane in this folder (or CORTEX_HOME)."""
        home = home or plane_home()
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
            raise Unavailable("CORTEX_URL or CORTEX_KEY is not set.", hint="Set both; `cortex key create` makes a key.")
        return cls(url, key, org=os.environ.get("CORTEX_ORG"))

    @cached_property
    def lines(self) -> Lines:
        from cortex_plane.client.guarding import Lines

        return Lines(self._address)

    def guard(
        self,
        name: str | None = None,
        *,
        agent: str,
        risk: Risk | str | None = None,
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
        report: Literal["now", "later"] = "now",
        parks: bool = False,
        on_behalf_of: Callable[..., str] | str | None = None,
    ) -> Callable[[F], F]:
        """Put a function behind the plane: each call is authorised first, and its outcome is kept.

        ``name`` is the tool's, `module.function` without one. ``wait``: how long a call waits for a person before it raises
        `ApprovalPending`. ``timeout``: how long the function may take; a plain function then runs in a thread of its own.
        ``key``: what names the act, as text or made from the arguments; the same key again never acts twice.
        ``probe`` looks whether an act happened that nobody knows of (`on_uncertain="probe"`), and needs a ``timeout``.
        ``leave_out``: parameters that nobody is shown; all others reach the function as plain JSON copies of what was shown.
        ``answers``: what to answer to gates, by gate and question. ``on_gate`` is asked instead, with the questions of one
        gate, and returns the answers, or None; without an answer the call raises `GateClosed`.
        ``report="later"``: the caller does not wait until a result is recorded. It is on its way at once, and recorded before the next
        call of the same session begins and before `close()` returns; if the process dies before that, the call is in doubt.
        ``parks``: where a guarded function inside raises `ApprovalPending`, this one begins again with the same ``key``, from its start. All
        that it does before must bear repetition. Without it a person is asked whether it happened.
        ``on_behalf_of``: the person for whom a service works, as text or made from the arguments; see `Sessions.open_external`.
        """
        from cortex_plane.client.guarding import GuardOptions, guard

        options = GuardOptions(
            tool=name or "", agent=agent, risk=None if risk is None else Risk(risk), read_only=read_only, on_uncertain=OnUncertain(on_uncertain),
            timeout=timeout, wait=wait, patience=patience, key=key, probe=probe, leave_out=frozenset(leave_out),
            answers=answers or {}, on_gate=on_gate, report=report, parks=parks, on_behalf_of=on_behalf_of,
        )  # fmt: skip
        return guard(self.lines, options)

    async def me(self) -> Me:
        """Who the key stands for, and what it may do."""
        from cortex_plane.tenancy.routes import GET_ME

        return await self.transport.call(GET_ME)

    def sign(self, text: str) -> str:
        """What only a holder of this key can make of the text."""
        return hmac.new(self._address.headers.get("Authorization", "").encode(), text.encode(), "sha256").hexdigest()

    async def close(self) -> None:
        if "lines" in self.__dict__:
            await self.lines.aclose()
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
