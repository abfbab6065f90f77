"""The HTTP client for vendors: where it connects, and where it never does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from cortex_plane.channels.vendor_http import MAX_ANSWER_BYTES, VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.model.notifications import TryAgain, Undeliverable
from tests.fixtures.receivers import Reply, receiving


@contextlib.asynccontextmanager
async def client_for(allowed: str, *addresses: str, seconds: float = 10) -> AsyncIterator[VendorClient]:
    """A client for which every name has these addresses."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    client = VendorClient(Allowed.parse(allowed), resolver=resolve, timeout=seconds)
    try:
        yield client
    finally:
        await client.close()


@contextlib.contextmanager
def silent(address: str, port: int) -> Iterator[None]:
    """Nobody answers there, and nobody refuses: the queue of the listener is full."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_server((address, port), backlog=0))
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((address, port))
        yield


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["1.1.1.1", "127.0.0.1"], ["::1"], []]
)
async def test_name_with_one_private_address_is_refused(addresses: list[str]) -> None:
    async with receiving() as receiver, client_for("", *addresses) as client:
        url = f"https://vendor.example:{receiver.port}/"
        for attempt in (client.request("POST", url, json={}), client.open_socket(url)):
            with pytest.raises(TryAgain, match=r"vendor\.example has no address on the public internet"):
                await attempt
        assert receiver.connections == 0


@pytest.mark.parametrize(
    "url", ["http://vendor.example/", "https://127.0.0.1/", "https://a@vendor.example/", "file:///x"]
)
async def test_address_that_may_not_be_named_is_refused(url: str) -> None:
    async with client_for("", "1.1.1.1") as client:
        for attempt in (client.request("GET", url), client.open_socket(url)):
            with pytest.raises(Undeliverable):
                await attempt


async def test_each_connection_goes_to_what_was_checked_for_it() -> None:
    """A name is resolved for each connection, once, and its connection goes to that address."""
    answers = iter([["127.0.0.1"], []])

    async def flipping(host: str, port: int) -> Sequence[str]:
        return next(answers)

    async with receiving() as receiver:
        client = VendorClient(Allowed.parse("vendor.example,127.0.0.0/8"), resolver=flipping)
        url = f"http://vendor.example:{receiver.port}/"
        assert (await client.request("POST", url, json={})).status == 204
        await client.close()
        with pytest.raises(TryAgain, match="no address on the public internet"):
            await client.request("POST", url, json={})
    assert len(receiver.got) == 1
    assert receiver.got[0].headers["host"] == f"vendor.example:{receiver.port}"


async def test_second_address_is_tried_where_the_first_is_silent() -> None:
    async with receiving() as receiver:
        with silent("127.0.0.2", receiver.port):
            async with client_for("127.0.0.0/8,vendor.example", "127.0.0.2", "127.0.0.1", seconds=1) as client:
                url = f"http://vendor.example:{receiver.port}/"
                assert (await client.request("POST", url, json={})).status == 204
                (await client.open_socket(url)).close()


async def test_redirects_and_proxies_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as elsewhere, receiving() as receiver, client_for("127.0.0.1") as client:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{elsewhere.host}")
        receiver.replies.append(Reply(307, {"Location": elsewhere.url}))
        assert (await client.request("POST", receiver.url, json={})).status == 307
        assert elsewhere.connections == 0


async def test_answer_that_is_too_long_is_left() -> None:
    async with receiving() as receiver, client_for("127.0.0.1") as client:
        receiver.replies.append(Reply(200, body=b"x" * (MAX_ANSWER_BYTES + 1)))
        with pytest.raises(TryAgain, match="longer than 1 MiB"):
            await asyncio.wait_for(client.request("GET", receiver.url), 20)
