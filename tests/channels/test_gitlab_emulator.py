"""The emulator of GitLab is one for python-gitlab."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import gitlab
import httpx
import pytest
import pytest_asyncio

from tests.emulators.gitlab import TOKEN, GitLabEmulator, gitlab_user
from tests.emulators.oauth import CLIENT_ID, CLIENT_SECRET


@pytest_asyncio.fixture
async def emulator() -> AsyncIterator[GitLabEmulator]:
    async with GitLabEmulator().serve() as emulator:
        yield emulator


def client_of(emulator: GitLabEmulator, token: str = TOKEN) -> gitlab.Gitlab:
    return gitlab.Gitlab(emulator.url.removesuffix("/api/v4"), private_token=token)


@pytest.mark.parametrize("kind", ["issues", "mergerequests"])
async def test_sdk_writes_and_changes_notes(emulator: GitLabEmulator, kind: str) -> None:
    def use() -> None:
        client = client_of(emulator)
        client.auth()
        assert client.user is not None
        assert client.user.id == 900
        assert client.personal_access_tokens.get("self").scopes == ["api"]
        project = client.projects.get("acme/shop")
        assert (project.id, project.visibility) == (42, "private")
        item = getattr(project, kind).get(5 if kind == "issues" else 7)
        note = item.notes.create({"body": "one"})
        note.body = "two"
        note.save()
        assert item.notes.get(note.id).body == "two"
        note.awardemojis.create({"name": "thumbsup"})

    await asyncio.to_thread(use)
    assert [(write.body, write.is_edit) for write in emulator.writes] == [("one", False), ("two", True)]
    assert [name for _, name in emulator.emoji] == ["thumbsup"]


async def test_sdk_reads_the_account_with_the_token_of_a_login(emulator: GitLabEmulator) -> None:
    back, server = "https://plane.example/back", emulator.url.removesuffix("/api/v4")
    emulator.login.redirect_uris.append(back)
    emulator.login.visitor = gitlab_user("ada", 11)
    client = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
    async with httpx.AsyncClient(base_url=server) as browser:
        asked = {
            "client_id": CLIENT_ID,
            "redirect_uri": back,
            "state": "s",
            "scope": "read_user",
            "response_type": "code",
        }
        answer = await browser.get("/oauth/authorize", params=asked)
        code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
        form = {**client, "code": code, "redirect_uri": back, "grant_type": "authorization_code"}
        token = (await browser.post("/oauth/token", data=form)).json()["access_token"]
        assert (await browser.post("/oauth/token", data=form)).json()["error"] == "invalid_grant"

        def use() -> None:
            person = gitlab.Gitlab(server, oauth_token=token, keep_base_url=True)
            person.auth()
            assert person.user is not None
            assert (person.user.id, person.user.username) == (11, "ada")

        await asyncio.to_thread(use)
        await browser.post("/oauth/revoke", data={**client, "token": token})
    with pytest.raises(gitlab.GitlabAuthenticationError):
        await asyncio.to_thread(use)


async def test_sdk_sees_its_errors(emulator: GitLabEmulator) -> None:
    def use() -> None:
        with pytest.raises(gitlab.GitlabAuthenticationError):
            client_of(emulator, "glpat-wrong").projects.get("acme/shop")
        with pytest.raises(gitlab.GitlabGetError) as missing:
            client_of(emulator).projects.get("acme/nothing")
        assert missing.value.response_code == 404
        issue = client_of(emulator).projects.get("acme/shop", lazy=True).issues.get(99, lazy=True)
        with pytest.raises(gitlab.GitlabCreateError) as refused:
            issue.notes.create({"body": "x"})
        assert refused.value.response_code == 404

    await asyncio.to_thread(use)


async def test_sdk_approves_deployments_and_starts_their_jobs(emulator: GitLabEmulator) -> None:
    ada = {"id": 11, "username": "ada", "name": "Ada"}
    held, _ = emulator.hold("acme/shop", "production", ada)
    unwanted, _ = emulator.hold("acme/shop", "production", ada)
    _, others = emulator.hold("acme/shop", "production", ada, required=2), emulator.hold("acme/web/open", "review", ada)

    def use() -> None:
        project = client_of(emulator).projects.get("acme/shop")
        found = project.deployments.list(status="blocked", order_by="id", sort="desc", per_page=2, get_all=False)
        assert [deployment.id for deployment in found] == sorted(emulator.held)[1:3][::-1]
        deployment = project.deployments.get(held.id)
        assert (deployment.status, deployment.pending_approval_count, deployment.deployable["status"]) == (
            "blocked",
            1,
            "manual",
        )
        job = project.jobs.get(deployment.deployable["id"])
        with pytest.raises(gitlab.GitlabJobPlayError, match="Unplayable"):
            job.play()
        assert deployment.approval(status="approved", comment="Yes.")["status"] == "approved"
        with pytest.raises(gitlab.exceptions.GitlabDeploymentApprovalError, match="not waiting for approvals"):
            deployment.approval(status="approved")
        job.play()
        assert project.jobs.get(job.id).status == "pending"
        project.deployments.get(unwanted.id).approval(status="rejected", comment="No.")
        assert project.deployments.get(unwanted.id).status == "failed"
        with pytest.raises(gitlab.GitlabGetError):
            project.deployments.get(others[0].id)

    await asyncio.to_thread(use)
    assert (held.plays, held.verdicts, unwanted.verdicts) == (1, [("approved", "Yes.")], [("rejected", "No.")])
