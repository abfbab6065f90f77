"""The first five minutes on a phone, as somebody without scripts and without an account at a vendor has them: on `cortex up`."""

from __future__ import annotations

import html
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.acceptance.planes import Plane, empty_folder
from tests.fixtures.visitors import fields_of

TRY = "/channels/try"


@pytest.fixture
def folder() -> Iterator[Path]:
    with empty_folder("cortex phone ") as folder:
        yield folder


class Browser:
    """Logged in as the admin of the plane."""

    def __init__(self, plane: Plane, http: httpx.Client) -> None:
        self.plane, self.http = plane, http
        self.http.post(plane.post("/v1/me/login-links")["url_path"])

    def page(self, path: str = TRY) -> str:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def submit(self, path: str, action: str, **changes: str) -> str:
        answer = self.http.post(action, data={**fields_of(self.page(path), action), **changes})
        assert answer.status_code == 200, answer.text
        return answer.text

    def write(self, app: str, text: str) -> None:
        self.submit(f"{TRY}/{app}", f"{TRY}/{app}/write", text=text)

    def shows(self, app: str, words: str) -> str:
        """The page of an app, once these words stand in it."""
        page: str = self.plane.until(lambda: page if words in text(page := self.page(f"{TRY}/{app}")) else None)
        return page

    def press(self, app: str, label: str) -> None:
        action = f"{TRY}/{app}/press"
        forms = re.findall(rf'<form[^>]*action="{action}"[^>]*>.*?</form>', self.page(f"{TRY}/{app}"), re.DOTALL)
        (form,) = [form for form in forms if re.search(rf">{label}</button>", form)]
        self.http.post(action, data=fields_of(form, action))


@contextmanager
def browser_of(plane: Plane) -> Iterator[Browser]:
    with httpx.Client(base_url=plane.access["url"], timeout=60, trust_env=False, follow_redirects=True) as http:
        yield Browser(plane, http)


def text(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_chat_on_telegram_approve_on_slack_and_again_after_a_restart(folder: Path) -> None:
    with Plane(folder, CORTEX_PORT="0") as plane:
        url = plane.wait_until_ready()
        assert f"{url}{TRY}" in plane.said
        with browser_of(plane) as browser:
            assert "chat with an agent on a phone" in text(browser.page("/"))
            assert "Try it on a phone" in text(browser.page("/channels"))
            browser.submit(TRY, f"{TRY}/link")
            browser.write("telegram", "ship 2.4")
            browser.shows("telegram", "Approval needed")
            browser.shows("slack", "Approval needed")
            browser.press("slack", "Approve")
            browser.shows("telegram", "A person approved it first.")
            telegram = browser.shows("telegram", "Approved by Admin")
            slack = browser.shows("slack", "Approved by Admin")
            assert "Approve</button>" not in telegram + slack, "no copy can be pressed any more"
        assert [act["version"] for act in plane.world()] == ["2.4"]
        kinds = {item["name"]: item["config"]["emulated"] for item in plane.get("/v1/connections")["items"]}
        assert kinds == {"Telegram (try it)": "yes", "Slack (try it)": "yes"}
        assert plane.end(signal.SIGINT) == 0, plane.said

    with Plane(folder, CORTEX_PORT="0") as plane:
        plane.wait_until_ready()
        with browser_of(plane) as browser:
            browser.write("slack", "ship 2.5")
            browser.shows("slack", "Approval needed")
            browser.press("slack", "Approve")
            browser.shows("slack", "A person approved it first.")
        assert [act["version"] for act in plane.world()] == ["2.4", "2.5"]
        plane.require_whole_audit()
        assert plane.end(signal.SIGINT) == 0, plane.said


@pytest.mark.parametrize(
    "settings", [{"CORTEX_HOST": "0.0.0.0"}, {"CORTEX_PUBLIC_URL": "https://plane.example"}], ids=["host", "public_url"]
)
def test_plane_that_others_reach_has_no_phone(folder: Path, settings: dict[str, str]) -> None:
    with Plane(folder, CORTEX_PORT="0", **settings) as plane:
        plane.wait_until_ready()
        assert TRY not in plane.said
        assert plane.get("/v1/connections")["items"] == []
        assert plane.end(signal.SIGINT) == 0, plane.said
