"""Connections to GitHub and GitLab, from their creation to a decision that a comment makes, over the plane's HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio
from starlette.datastructures import State

from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.github import accounts as github_accounts
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.gitlab import accounts as gitlab_accounts
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.emulators.github import APP_ID, INSTALLATION_ID, GitHubEmulator, app_key_pem
from tests.emulators.gitlab import TOKEN, GitLabEmulator
from tests.fixtures.people import Person, World

PUBLIC_URL = "https://plane.example"


@pytest_asyncio.fixture
async def github(app_state: State) -> AsyncIterator[GitHubEmulator]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitHubEmulator().serve() as emulator:
        app_state.channels = served(GitHubChannel(client))
        yield emulator
        await client.close()


@pytest_asyncio.fixture
async def gitlab(app_state: State) -> AsyncIterator[GitLabEmulator]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitLabEmulator().serve() as emulator:
        app_state.channels = served(GitLabChannel(client))
        yield emulator
        await client.close()


def served(channel: GitHubChannel | GitLabChannel) -> ServedChannels:
    return ServedChannels(
        vendors={channel.channel_type: channel}, allowed=Allowed.parse("127.0.0.1"), public_url=PUBLIC_URL
    )


def app_draft(emulator: GitHubEmulator, **secrets: str) -> dict[str, Any]:
    return {
        "channel_type": "github", "name": "acme",
        "config": {"api_url": emulator.url, "app_id": str(APP_ID), "installation_id": str(INSTALLATION_ID)},
        "secrets": {"private_key": app_key_pem(), **secrets},
    }  # fmt: skip


async def create(http: httpx.AsyncClient, world: World, draft: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post("/v1/connections", json=draft, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_app_is_connected_with_its_webhook(http: httpx.AsyncClient, world: World, github: GitHubEmulator) -> None:
    made = await create(http, world, app_draft(github))
    assert (made["account"], made["state"], made["to_do"]) == ("cortex[bot]", "ok", [])
    assert github.hook["url"] == f"{PUBLIC_URL}/v1/connections/{made['id']}/inbound"
    secret = github.hook["secret"]
    assert secret not in str(made)
    checked = await http.post(f"/v1/connections/{made['id']}/check", headers=world.admin.headers)
    assert checked.status_code == 200, checked.text
    assert github.hook["secret"] == secret, "a check changes nothing"


async def test_app_that_holds_deployments_is_told_what_it_may_not_do_yet(
    http: httpx.AsyncClient, world: World, github: GitHubEmulator
) -> None:
    github.events.append("deployment_protection_rule")
    github.permissions["actions"] = "read"
    made = await create(http, world, app_draft(github))
    (task,) = made["to_do"]
    assert "write Deployments" in task
    assert "Actions" not in task
    github.permissions["deployments"] = "write"
    checked = await http.post(f"/v1/connections/{made['id']}/check", headers=world.admin.headers)
    assert checked.json()["to_do"] == []


async def test_wrong_value_of_a_connection_is_named(
    http: httpx.AsyncClient, world: World, github: GitHubEmulator
) -> None:
    draft = app_draft(github)
    draft["config"]["installation_id"] = "12"
    answer = await http.post("/v1/connections", json=draft, headers=world.admin.headers)
    assert answer.status_code == 422
    assert "installation" in answer.text


async def test_gitlab_is_connected_with_what_is_left_to_do(
    http: httpx.AsyncClient, world: World, gitlab: GitLabEmulator
) -> None:
    secrets = {"token": TOKEN, "webhook_secret": "chosen"}
    draft = {"channel_type": "gitlab", "name": "acme", "config": {"api_url": gitlab.url}, "secrets": secrets}
    made = await create(http, world, draft)
    (task,) = made["to_do"]
    assert f"/v1/connections/{made['id']}/inbound" in task
    assert "chosen" not in str(made)
    path, headers = f"/v1/connections/{made['id']}", world.admin.headers
    refused = await http.patch(path, json={"config": {"projects": "acme"}}, headers=headers)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "config.projects")
    changed = await http.patch(path, json={"config": {"projects": "acme/shop, acme/gone"}}, headers=headers)
    assert changed.status_code == 200, changed.text
    assert (changed.json()["config"]["mode"], len(changed.json()["to_do"])) == ("polling", 2)
    assert "acme/gone" in changed.json()["to_do"][1]


def test_people_log_in_where_the_api_is() -> None:
    for api, web in (
        ("https://api.github.com", "https://github.com"),
        ("https://api.acme.ghe.com/", "https://acme.ghe.com"),
        ("https://git.acme.example:8443/api/v3/", "https://git.acme.example:8443"),
        ("https://api.acme.example/api/v3", "https://api.acme.example"),
    ):
        assert github_accounts.web_address(api) == web
    assert gitlab_accounts.web_address("https://acme.example/gitlab/api/v4") == "https://acme.example/gitlab"


@pytest.mark.parametrize("external_user", ["583231"])
async def test_admin_says_whose_account_it_is(
    http: httpx.AsyncClient, world: World, github: GitHubEmulator, admin: asyncpg.Connection, external_user: str
) -> None:
    made = await create(http, world, app_draft(github))
    ann: Person = await world.person(Role.APPROVER, name="Ann")
    draft = {"member_id": str(ann.member_id), "external_user": external_user}
    path = f"/v1/connections/{made['id']}/mappings"
    login = await http.post(path, json=draft | {"external_user": "ann"}, headers=world.admin.headers)
    assert (login.status_code, login.json()["errors"][0]["field"]) == (422, "external_user"), "somebody else may get it"
    answer = await http.post(path, json=draft, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
    assert answer.json()["verified_at"] is not None
    set_up_by = await admin.fetchval("select set_up_by from channel_connection where name = 'acme'")
    assert world.admin.member_id in set_up_by, "their vote and one of this account count as one human's"
    proven = await admin.fetchval("select has_proven_channel($1, $2, 'infinity')", world.org_id, ann.member_id)
    assert not proven, "an admin's word does not show that Ann is somebody else than whoever enrolled her"
