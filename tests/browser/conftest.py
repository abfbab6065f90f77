"""A plane that really runs, and people with browsers in front of it."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright

from tests.acceptance.planes import Plane
from tests.browser import chromium

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

# Heard before any script of the page runs. The browser's tools put it there, so the page's policy does not concern it.
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
window.alert = () => { window.violations.push("a script of an agent ran"); };
"""


@dataclass
class Stage:
    """A running plane, seen from a program."""

    url: str
    api: httpx.Client
    plane: Plane

    def agent(self, slug: str, script: list[dict[str, Any]], name: str | None = None) -> str:
        body = {
            "name": name or f"Agent {slug}", "slug": slug, "role": "DevOps", "team": "main",
            "model_config": {"model": "scripted", "script": script}, "skill_config": {"app": "demo"},
        }  # fmt: skip
        answer = self.api.post("/v1/agents", json=body)
        assert answer.status_code == 201, answer.text
        return slug

    def submit(self, agent: str, text: str, **more: Any) -> dict[str, Any]:
        answer = self.api.post("/v1/jobs", json={"agent": agent, "payload": {"text": text}, **more})
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def asked(self, job: dict[str, Any]) -> dict[str, Any]:
        """The request of a job, once it has one."""
        request: dict[str, Any] = self.until(lambda: self._first(job["id"]))
        return request

    def _first(self, job_id: str) -> dict[str, Any] | None:
        items = self.api.get("/v1/approvals", params={"job_id": job_id}).json()["items"]
        return items[0] if items else None

    def until(self, look: Callable[[], Any], seconds: float = 30) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            seen = look()
            if seen:
                return seen
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)

    def ended(self, job_id: str) -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            job: dict[str, Any] = self.api.get(f"/v1/jobs/{job_id}").json()
            return job if job["finished_at"] else None

        job: dict[str, Any] = self.until(over)
        return job

    def link(self, member: str | None = None) -> str:
        path = f"/v1/members/{member}/login-links" if member else "/v1/me/login-links"
        answer = self.api.post(path)
        assert answer.status_code == 201, answer.text
        return str(self.url + answer.json()["url_path"])


@dataclass
class People:
    """Contexts of one browser: each is somebody with a device of their own."""

    browser: Browser
    stage: Stage
    closing: ExitStack
    contexts: list[BrowserContext] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    streams_break: bool = False
    """A test that breaks them on purpose: the browser logs it."""

    def somebody(self, *, phone: bool = False, scripts: bool = True, scheme: str = "light") -> Page:
        context = self.browser.new_context(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
            is_mobile=phone,
            has_touch=phone,
            color_scheme=scheme,  # type: ignore[arg-type]
            java_script_enabled=scripts,
        )
        context.set_default_timeout(15_000)
        self.closing.callback(context.close)
        self.contexts.append(context)
        if scripts:
            context.add_init_script(_WATCH)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        # A refused form is answered with its status, and browsers log every status above 400.
        if message.type == "error" and not re.search(r"status of (401|403|404|409|422)", message.text):
            self.complaints.append(message.text)

    def logged_in(self, member: str | None = None, **device: Any) -> Page:
        page = self.somebody(**device)
        page.goto(self.stage.link(member))
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
        return page

    def require_peace(self) -> None:
        """No script of an agent ran, nothing broke the policy, nothing failed."""
        for context in self.contexts:
            for page in context.pages:
                if page.url.startswith("http"):
                    self.complaints += page.evaluate("window.violations || []") if _has_scripts(page) else []
        broken = re.compile(
            r"^\[object Event\]$|net::ERR_FAILED|^htmx:(?:afterRequest|sendError), "
            if self.streams_break
            else r"(?!)"
        )
        assert [said for said in self.complaints if not broken.search(said)] == []


def _has_scripts(page: Page) -> bool:
    try:
        return bool(page.evaluate("Array.isArray(window.violations)"))
    except Exception:
        return False


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """`cortex up` in a folder of its own."""
    if chromium.found() is None:
        pytest.skip(chromium.MISSING)
    with tempfile.TemporaryDirectory(prefix="cortex browser ") as name:
        folder = Path(name)
        folder.chmod(0o755)
        plane = Plane(folder, CORTEX_PORT="0")
        try:
            url = plane.wait_until_ready()
            access = json.loads((folder / ".cortex" / "access.json").read_text())
            headers = {"Authorization": f"Bearer {access['key']}"}
            with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as api:
                yield Stage(url, api, plane)
        finally:
            assert plane.end(signal.SIGINT) == 0, plane.said


@pytest.fixture(scope="module")
def browser(stage: Stage) -> Iterator[Browser]:
    path = chromium.found()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=chromium.FLAGS)
        yield started
        started.close()


@pytest.fixture
def people(stage: Stage, browser: Browser) -> Iterator[People]:
    with ExitStack() as closing:
        made = People(browser, stage, closing)
        yield made
        made.require_peace()


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    """Keep a screenshot where CORTEX_SCREENSHOTS names a folder."""
    folder = os.environ.get("CORTEX_SCREENSHOTS")

    def take(page: Page, name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with suppress(
                Error
            ):  # a picture is for people: a busy machine that cannot take one fails no test
                page.screenshot(path=str(Path(folder) / f"{name}.png"))

    return take
