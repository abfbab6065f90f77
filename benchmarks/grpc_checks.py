"""`GovernanceService.Check` of one API process, by clients that ask many things at once.

A check is recorded: call, events and audit entries are one commit. A look at the same call records nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import grpc
from benchmarks.goals import goal, table
from benchmarks.ingest import serve
from benchmarks.measuring import Work, compare
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import plane
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.grpc.upsquad.governance.v1.governance_pb2 import VERDICT_ALLOW, CheckRequest
from cortex_plane.grpc.upsquad.governance.v1.governance_pb2_grpc import GovernanceServiceStub
from cortex_plane.main.sockets import bind
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.tenancy.verbs import keys

CONCURRENCY = 64
ARGUMENTS = b'{"order": "A-17", "cents": 500}'


async def run(admin_url: str, *, rounds: int = 5, count: int = 4000) -> bool:
    async with fresh_database(admin_url, "grpc_checks") as url, plane(url) as made:
        secret = str(await keys.issue_key_for_owner(made.db))
        sessions = []
        for _ in range(CONCURRENCY):
            agent = await made.agent(f"elsewhere-{uuid4().hex[:8]}", [])
            draft = SessionDraft(agent=agent.slug, kind=SessionKind.EXTERNAL)
            sessions.append(str((await session_lifecycle.create(made.db, made.actor, draft)).id))
        with bind("127.0.0.1", 0) as place:
            port = place.getsockname()[1]
        server, _ = await serve(made.app_url, CORTEX_GRPC="on", CORTEX_GRPC_PORT=str(port))
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = GovernanceServiceStub(channel)
                rivals = {
                    "look": _checks(stub.Check, secret, sessions, look_only=True),
                    "check": _checks(stub.Check, secret, sessions, look_only=False),
                }
                medians = await compare(rivals, rounds=rounds, count=count, concurrency=CONCURRENCY, url=url)
        finally:
            server.terminate()
            await server.wait()
    return _print({name: 1 / seconds for name, seconds in medians.items()})


def _checks(check_rpc: Callable[..., Awaitable[Any]], secret: str, sessions: list[str], *, look_only: bool) -> Work:
    metadata = (("authorization", f"Bearer {secret}"),)

    async def check(number: int) -> None:
        request = CheckRequest(
            session_id=sessions[number % len(sessions)], tool_name="refunds.create", args=ARGUMENTS, look_only=look_only
        )
        answer = await check_rpc(request, metadata=metadata)
        assert answer.verdict == VERDICT_ALLOW

    return check


def _print(rates: dict[str, float]) -> bool:
    title = f"GovernanceService.Check, {CONCURRENCY} at once, per second"
    print(f"\n{title}")
    for name, rate in rates.items():
        print(f"{'  ' + name:44}{rate:>10,.0f}")
    table(title, "per second", rates)
    return goal("gRPC Check on one process", "checks per second", rates["check"], "≥", 1500, "/s")
