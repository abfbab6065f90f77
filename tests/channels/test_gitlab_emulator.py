"""The emulator of GitLab is one for python-gitlab."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import gitlab
import pytest
import pytest_asyncio

from tests.emulators.gitlab import TOKEN, GitLabEmulator


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
