"""The gRPC door of an API process beside its other doors: whose turn it is, its port, and how it ends."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

import grpc
from cortex_plane.approvals.verbs import approval_feed
from cortex_plane.db.database import Database
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main import grpc_door
from cortex_plane.main.api_process import create_app
from cortex_plane.main.settings import Settings
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame
from tests.conftest import Urls
from tests.fixtures.listeners import listen
from tests.fixtures.people import World, apply_policies
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import Gate
from tests.grpc.door import Client, open_door, refused
from tests.grpc.test_grpc import POLICIES, asked, changes, drained, opened
from tests.http.test_http_events import until
from tests.main.test_api_processes import served

STREAMS = 8


@pytest.mark.proves("D.1040")
async def test_streams_that_catch_up_take_turns_of_their_org(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, few of them read at a time, and each as a request of its org."""
    await apply_policies(world.db, world.admin.actor, POLICIES)
    await world.person(Role.APPROVER, name="Val")
    monkeypatch.setattr(approval_feed, "PAGE", 1)
    async with open_door(world.db) as door, door.channel() as channel:
        client, in_flight = Client(channel, world.admin), door.app.state.in_flight
        begin: Any = client.approvals.WatchApprovals(approval_pb2.WatchApprovalsRequest(), metadata=client.key)
        start = (await begin.read()).cursor
        begin.cancel()
        expected = [(await asked(client, await opened(world), args=b'{"n": %d}' % n)).approval_id for n in range(3)]

        gate, reads, most = Gate(), 0, 0
        look = approval_feed.changes_of_approvals

        async def held_look(db: Database, actor: Any, cursor: Any) -> Any:
            nonlocal reads, most
            if cursor is not None and cursor.until is not None:
                reads, most = reads + 1, max(most, reads + 1)
                async with asyncio.timeout(10):
                    await gate.passed()
                reads -= 1
            return await look(db, actor, cursor)

        monkeypatch.setattr(approval_feed, "changes_of_approvals", held_look)
        request = approval_pb2.WatchApprovalsRequest(after=start)
        streams = [client.approvals.WatchApprovals(request, metadata=client.key) for _ in range(STREAMS)]
        for stream in streams:
            await changes(stream, 1)
        await gate.arrived(frame.READS_OF_ORG)
        await until(lambda: in_flight.held_by(world.org_id.int) == frame.READS_OF_ORG)
        # A reader that leaves while it waits, or while it reads, keeps no place.
        streams[0].cancel()
        streams[-1].cancel()
        gate.opened.set()
        for stream in streams[1:-1]:
            rest = [message.event.approval.approval_id for message in await changes(stream, 2)]
            assert rest == expected[1:]
            stream.cancel()
        await until(lambda: door.app.state.streams.of.total() == 0 and not in_flight.held_by(world.org_id.int))
    assert most == frame.READS_OF_ORG


@pytest.mark.proves("D.1041")
async def test_both_doors_end_together(urls: Urls, world: World, tmp_path: Path) -> None:
    """While a request of HTTP finishes, no call of gRPC begins, and the streams are told."""
    await apply_policies(world.db, world.admin.actor, POLICIES)
    approver = await world.person(Role.APPROVER, name="Val", clearance=3)
    with closing(listen()) as listener:
        port = listener.getsockname()[1]
    async with (
        served(urls, tmp_path, CORTEX_GRPC_PORT=str(port)) as api,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await api.ready()
        client = Client(channel, approver)
        approval, other = [
            (await asked(Client(channel, world.admin), await opened(world), args=b'{"n": %d}' % n)).approval_id
            for n in range(2)
        ]
        stream = client.approvals.WatchApprovals(approval_pb2.WatchApprovalsRequest(), metadata=client.key)
        await stream.read()
        seen = await client.call(client.approvals.GetApproval, approval_pb2.GetApprovalRequest(approval_id=approval))
        body = {"decision": "denied", "version": 1, "input_hash": seen.input_hash}
        decision = approval_pb2.RecordDecisionRequest(approval_id=other, decision=approval_pb2.DECISION_DENIED)
        async with httpx.AsyncClient(base_url=api.url, headers=approver.headers, timeout=20) as http:
            async with world.db.transaction(world.org_id) as tx:
                held = [UUID(approval), UUID(other)]
                await tx.rows("select from approval_request where id = any ($1) for update", held)
                post = asyncio.ensure_future(http.post(f"/v1/approvals/{approval}/decide", json=body))
                call = asyncio.ensure_future(client.call(client.approvals.RecordDecision, decision))
                await _until_waiting(urls.admin, 2)
                api.process.send_signal(signal.SIGTERM)
                end = await refused(drained(stream))
                assert (end.code, end.reason, end.message) == ("UNAVAILABLE", "stream_dropped", "This process ends.")
                async with asyncio.timeout(2):
                    with suppress(grpc.aio.AioRpcError):
                        while True:
                            await client.call(client.approvals.ListApprovals, approval_pb2.ListApprovalsRequest())
                assert (post.done(), call.done()) == (False, False)
            assert (await post).status_code == 200
            assert (await call).result == approval_pb2.RECORD_RESULT_OK
        async with asyncio.timeout(5):
            assert await api.process.wait() == 0


async def _until_waiting(admin_url: str, count: int) -> None:
    admin = await asyncpg.connect(admin_url)
    try:
        async with asyncio.timeout(5):
            while await lock_waiters(admin) < count:  # noqa: ASYNC110 -- nothing tells who waits
                await asyncio.sleep(0.01)
    finally:
        await admin.close()


@pytest.mark.proves("D.1042")
async def test_a_taken_port_is_an_error_where_nobody_reads_another_one(world: World) -> None:
    """Only `cortex up` prints where gRPC is."""
    with closing(listen()) as listener:
        port = listener.getsockname()[1]
        settings = Settings(port=port - 1, grpc="on")
        metrics = Metrics()
        app = create_app(world.db, metrics)
        with pytest.raises(SetupError, match=f"Cannot serve gRPC on 127.0.0.1:{port}"):
            async with grpc_door.grpc_door(settings, app, world.db):
                pass
        with pytest.raises(SetupError, match=f"Cannot serve gRPC on 127.0.0.1:{port}"):
            grpc_door.free_port(settings)
        async with grpc_door.grpc_door(settings, app, world.db, or_any_port=True) as server:
            assert server is not None
            assert not server.address.endswith(f":{port}")
        with pytest.raises(SetupError, match="CORTEX_GRPC_PORT"):
            async with grpc_door.grpc_door(
                settings.model_copy(update={"grpc_port": port}), app, world.db, or_any_port=True
            ):
                pass
        metrics.close()
    async with grpc_door.grpc_door(settings, app, world.db) as server:
        assert server is not None
        assert server.address == f"127.0.0.1:{port}", "the one after that of HTTP"
