"""Objects of GitHub's API and webhooks with all the fields that its published schemas require."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

BASE = "https://api.github.example"
WHEN = "2026-01-01T00:00:00Z"
_USER_URLS = (
    "followers", "following", "gists", "starred", "subscriptions", "organizations", "repos", "events", "received_events",
)  # fmt: skip
_REPOSITORY_URLS = (
    "forks", "keys", "collaborators", "teams", "hooks", "issue_events", "events", "assignees", "branches", "tags", "blobs",
    "git_tags", "git_refs", "trees", "statuses", "languages", "stargazers", "contributors", "subscribers", "subscription",
    "commits", "git_commits", "comments", "issue_comment", "contents", "compare", "merges", "archive", "downloads", "issues",
    "pulls", "milestones", "notifications", "labels", "releases", "deployments", "git", "ssh", "clone", "svn",
)  # fmt: skip
_COUNTS = (
    "size", "stargazers_count", "watchers_count", "forks_count", "open_issues_count", "forks", "open_issues", "watchers",
    "subscribers_count", "network_count",
)  # fmt: skip

NOT_IN_WEBHOOKS = frozenset({"subscribers_count", "network_count"})


def user(login: str, id: int, kind: str = "User") -> dict[str, Any]:
    url = f"{BASE}/users/{quote(login)}"
    return {
        "login": login, "id": id, "node_id": f"U_{id}", "avatar_url": f"{BASE}/avatars/{id}", "gravatar_id": "", "url": url,
        "html_url": f"https://github.example/{quote(login)}", "type": kind, "site_admin": False,
        **{f"{name}_url": f"{url}/{name}" for name in _USER_URLS},
    }  # fmt: skip


def account(login: str, id: int) -> dict[str, Any]:
    """As GitHub shows somebody to an application at which they logged in."""
    nothing = ("name", "company", "blog", "location", "email", "hireable", "bio")
    counts = ("public_repos", "public_gists", "followers", "following")
    return {
        **user(login, id), **dict.fromkeys(nothing), **dict.fromkeys(counts, 0), "created_at": WHEN, "updated_at": WHEN,
        "user_view_type": "public",
    }  # fmt: skip


def repository(full_name: str, *, is_private: bool) -> dict[str, Any]:
    owner, name = full_name.split("/")
    url = f"{BASE}/repos/{full_name}"
    return {
        "id": 1296269, "node_id": "R_1296269", "name": name, "full_name": full_name, "private": is_private,
        "owner": user(owner, 6811672, "Organization"), "html_url": f"https://github.example/{full_name}", "description": None,
        "fork": False, "url": url, "created_at": WHEN, "updated_at": WHEN, "pushed_at": WHEN, "homepage": None,
        "language": None, "has_issues": True, "has_projects": False, "has_downloads": False, "has_wiki": False,
        "has_pages": False, "has_discussions": False, "mirror_url": None, "archived": False, "disabled": False,
        "license": None, "default_branch": "main", "is_template": False, "web_commit_signoff_required": False, "topics": [],
        "visibility": "private" if is_private else "public", "custom_properties": {}, **dict.fromkeys(_COUNTS, 0),
        **{f"{part}_url": f"{url}/{part}" for part in _REPOSITORY_URLS},
    }  # fmt: skip


def _reactions(url: str) -> dict[str, Any]:
    kinds = ("+1", "-1", "laugh", "hooray", "confused", "heart", "rocket", "eyes")
    return {"url": f"{url}/reactions", "total_count": 0, **dict.fromkeys(kinds, 0)}


def comment(full_name: str, number: int, id: int, author: dict[str, Any], body: str, at: str) -> dict[str, Any]:
    url = f"{BASE}/repos/{full_name}/issues/comments/{id}"
    return {
        "url": url, "html_url": f"https://github.example/{full_name}/issues/{number}#issuecomment-{id}",
        "issue_url": f"{BASE}/repos/{full_name}/issues/{number}", "id": id, "node_id": f"IC_{id}", "user": author,
        "created_at": at, "updated_at": at, "author_association": "MEMBER", "performed_via_github_app": None, "body": body,
        "reactions": _reactions(url),
    }  # fmt: skip


def issue(full_name: str, number: int, author: dict[str, Any]) -> dict[str, Any]:
    url = f"{BASE}/repos/{full_name}/issues/{number}"
    return {
        "url": url, "repository_url": f"{BASE}/repos/{full_name}", "labels_url": f"{url}/labels", "comments_url": f"{url}/comments",
        "events_url": f"{url}/events", "html_url": f"https://github.example/{full_name}/issues/{number}", "id": 1000 + number,
        "node_id": f"I_{number}", "number": number, "title": "Release", "user": author, "labels": [], "state": "open",
        "locked": False, "assignee": None, "assignees": [], "milestone": None, "comments": 1, "created_at": WHEN,
        "updated_at": WHEN, "closed_at": None, "author_association": "MEMBER", "active_lock_reason": None, "body": None,
        "reactions": _reactions(url), "timeline_url": f"{url}/timeline", "state_reason": None,
    }  # fmt: skip


def app(id: int, slug: str, permissions: dict[str, str], events: list[str]) -> dict[str, Any]:
    return {
        "id": id, "slug": slug, "node_id": f"A_{id}", "owner": user("acme", 6811672, "Organization"), "name": slug,
        "description": None, "external_url": "https://plane.example", "html_url": f"https://github.example/apps/{slug}",
        "created_at": WHEN, "updated_at": WHEN, "permissions": permissions, "events": events,
    }  # fmt: skip


def installation(id: int, app_id: int) -> dict[str, Any]:
    url = f"{BASE}/app/installations/{id}"
    return {
        "id": id, "account": user("acme", 6811672, "Organization"), "repository_selection": "all",
        "access_tokens_url": f"{url}/access_tokens", "repositories_url": f"{BASE}/installation/repositories",
        "html_url": f"https://github.example/organizations/acme/settings/installations/{id}", "app_id": app_id,
        "app_slug": "cortex", "target_id": 6811672, "target_type": "Organization", "permissions": {"issues": "write"},
        "events": ["issue_comment"], "created_at": WHEN, "updated_at": WHEN, "single_file_name": None, "suspended_at": None,
        "suspended_by": None,
    }  # fmt: skip


def deployment(full_name: str, id: int, environment: str, creator: dict[str, Any], at: str) -> dict[str, Any]:
    url = f"{BASE}/repos/{full_name}/deployments/{id}"
    return {
        "url": url, "id": id, "node_id": f"DE_{id}", "task": "deploy", "original_environment": environment,
        "environment": environment, "description": None, "created_at": at, "updated_at": at, "statuses_url": f"{url}/statuses",
        "repository_url": f"{BASE}/repos/{full_name}", "creator": creator, "sha": "f95f852bd8fca8fcc58a9a2d6c842781e32a215e",
        "ref": "main", "payload": {}, "transient_environment": False, "production_environment": True,
        "performed_via_github_app": None,
    }  # fmt: skip


def hook(id: int, url: str) -> dict[str, Any]:
    return {
        "type": "App", "id": id, "name": "web", "active": True, "app_id": 4711, "events": ["issue_comment"],
        "config": {"content_type": "json", "url": url, "insecure_ssl": "0", "secret": "********"}, "updated_at": WHEN,
        "created_at": WHEN, "url": f"{BASE}/app/hook", "ping_url": f"{BASE}/app/hook/pings",
        "deliveries_url": f"{BASE}/app/hook/deliveries",
    }  # fmt: skip
