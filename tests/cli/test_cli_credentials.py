"""Tokens and the signing secret from the command line, by somebody who may have no key."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest import mock
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.client import Client
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Conflict, Unauthenticated
from tests.cli.test_cli import Shell
from tests.cli.test_cli_approvals import asked, end_of, live, shipping  # noqa: F401 -- fixtures
from tests.cli.test_cli_jobs import Live
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.credentials import token_for
from tests.fixtures.people import World


@pytest.fixture
def keyless(live: Live) -> Shell:  # noqa: F811
    """The same plane, for somebody who has its address and nothing else."""
    environment = {k: v for k, v in live.shell.environment.items() if k != "CORTEX_KEY"}
    return replace(live.shell, environment=environment)


def minted(live: Live, slug: str = "shipper") -> tuple[str, str]:  # noqa: F811
    approval = asked(live, slug=slug)
    token = live.begin(token_for(live.world, approval.id, live.world.admin.actor))()
    return token, str(approval.job_id)


def typed(text: str) -> AbstractContextManager[object]:
    return mock.patch.object(sys, "stdin", io.StringIO(text))


@pytest.mark.proves("D.159")
def test_a_token_approves_and_denies_without_a_key(
    live: Live,  # noqa: F811
    keyless: Shell,
    shipping: Shipping,  # noqa: F811
) -> None:
    token, job = minted(live)
    with typed(f"{token}\n"):
        told = keyless.run("approval", "approve", "--token", "-", "--reason", "from my mail")
    assert told.stdout == f"ship is approved; job {job}\n"
    assert token not in told.stdout + told.stderr
    assert "it was before" in keyless.run("approval", "approve", "--token", token).stdout
    assert "approval_conflict" in keyless.run("approval", "deny", "--token", token, expect=4).stderr
    second, other = minted(live, "shipper-2")
    receipt = keyless.one("approval", "deny", "--token", second)
    assert receipt["result"] == "OK"
    assert end_of(live, UUID(other)) is JobStatus.FAILED


@pytest.mark.proves("D.159")
def test_a_token_says_all_that_is_to_say(live: Live, keyless: Shell) -> None:  # noqa: F811
    token, _ = minted(live)
    nobody = "01936f3a-0000-7000-8000-000000000000"
    for words in (
        ("approve", nobody, "--token", token),
        ("approve", "--token", token, "--version", "1"),
        ("approve", "--token", token, "--edit", "{}"),
        ("approve", "--token", token, "--standing-calls", "3"),
        ("deny", nobody, "--token", token),
        ("deny", "--token", token, "--version", "1"),
    ):
        assert "its own request" in keyless.run("approval", *words, expect=2).stderr
    for word in ("approve", "deny"):
        assert "Which one?" in live.shell.run("approval", word, expect=2).stderr
    with typed("\n"):
        assert "There is no token." in keyless.run("approval", "approve", "--token", "-", expect=2).stderr
    bad = keyless.run("approval", "approve", "--token", token[:-1], expect=5).stderr
    assert "token_malformed" in bad
    assert token[:-1] not in bad
    lost = replace(keyless, environment={k: v for k, v in keyless.environment.items() if k != "CORTEX_URL"})
    assert "CORTEX_URL" in lost.run("approval", "approve", "--token", token, expect=6).stderr


@pytest_asyncio.fixture
async def nobody(http: httpx.AsyncClient) -> AsyncIterator[Client]:
    async with Client("http://plane", None, transport=http._transport) as client:
        yield client


@pytest.mark.proves("D.159")
async def test_the_client_decides_by_token_without_a_key(nobody: Client, strict: World) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    token = await token_for(strict, approval.id, strict.admin.actor)
    receipts = await asyncio.gather(
        *(nobody.approvals.decide_by_token(token, Choice.APPROVED, reason="yes") for _ in range(2))
    )
    assert sorted(receipt.result for receipt in receipts) == ["DUPLICATE", "OK"]
    with pytest.raises(Conflict, match="first decision stands"):
        await nobody.approvals.decide_by_token(token, Choice.DENIED)
    with pytest.raises(Unauthenticated) as refused:
        await nobody.approvals.decide_by_token(token[:-1], Choice.DENIED)
    assert refused.value.code == "token_malformed"
    with pytest.raises(Unauthenticated):
        await nobody.approvals.get(approval.id)


@pytest.mark.proves("D.157")
async def test_the_client_rotates_the_secret(http: httpx.AsyncClient, strict: World) -> None:
    async with Client("http://plane", strict.admin.secret, transport=http._transport) as client:
        first = await client.orgs.rotate_secret()
        second = await client.orgs.rotate_secret(forget=True)
    assert first.accepted_until == first.rotated_at  # there was none before
    assert second.accepted_until <= second.rotated_at
