"""A plane that really runs, and people with browsers in front of it."""

from __future__ import annotations

import email
import email.policy
import mailbox
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright

from tests.acceptance.planes import Plane, running
from tests.browser import chromium

PATIENCE = 30_000
"""Milliseconds until something that does not happen fails a test: a busy machine is no reason."""
expect.set_options(timeout=PATIENCE)

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
    """An org on a running plane, seen from a program of its admin."""

    plane: Plane
    api: httpx.Client
    key: str
    keys: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.plane.access["url"]

    def cortex(self, *words: str) -> CompletedProcess[str]:
        """A command of the admin."""
        return self.plane.run(*words, check=True, CORTEX_URL=self.url, CORTEX_KEY=self.key)

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

    def until(self, look: Callable[[], Any]) -> Any:
        return self.plane.until(look)

    def ended(self, job_id: str) -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            job: dict[str, Any] = self.api.get(f"/v1/jobs/{job_id}").json()
            return job if job["finished_at"] else None

        job: dict[str, Any] = self.until(over)
        return job

    def link(self, member: str | None = None) -> str:
        answer = self.api.post("/v1/me/login-links", headers=self.headers_of(member) if member else None)
        assert answer.status_code == 201, answer.text
        return str(self.url + answer.json()["url_path"])

    def headers_of(self, member: str) -> dict[str, str]:
        """The key of somebody who was enrolled and has proven a channel of their own."""
        if member not in self.keys:
            code = self.made(f"/v1/members/{member}/enrolment-codes")["code"]
            key = self.made("/v1/enrolments", {"code": code})["secret"]
            self.keys[member] = {"Authorization": f"Bearer {key}"}
            self._prove_channel(member)
        return self.keys[member]

    def _prove_channel(self, member: str) -> None:
        """With a mail: a code in a chat proves nothing against the admin who set that chat up."""
        address = f"{uuid4().hex[:8]}@example.com"
        self.made("/v1/me/addresses", {"email": address}, headers=self.keys[member])
        link: str = self.plane.until(lambda: self._verification_link(address), 20)
        with httpx.Client(headers={"Origin": self.url}, timeout=60, trust_env=False) as browser:
            browser.post(self.link(member))
            nonce = re.search(r'name="nonce" value="([^"]+)"', browser.get(link).text)
            assert nonce is not None
            assert browser.post(link, data={"nonce": nonce[1]}).status_code == 303

    def _verification_link(self, address: str) -> str | None:
        box = mailbox.Maildir(str(self.plane.folder / ".cortex" / "mail"), create=False)
        for key in box.iterkeys():
            mail = email.message_from_bytes(box.get_bytes(key), policy=email.policy.default)
            if isinstance(mail, EmailMessage) and address in mail["To"] and (part := mail.get_body(("plain",))):
                found = re.search(r"http://\S+/verify/\S+", part.get_content())
                return found and found[0]
        return None

    def made(
        self, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        answer = self.api.post(path, json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made


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

    def somebody(self, *, phone: bool = False, scripts: bool = True) -> Page:
        context = self.browser.new_context(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
            is_mobile=phone,
            has_touch=phone,
            java_script_enabled=scripts,
        )
        context.set_default_timeout(PATIENCE)
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

    def with_session(self, member: str | None = None, **device: Any) -> Page:
        """Somebody who has logged in and opened nothing yet. The link is used without its page, which has a test of its own."""
        page = self.somebody(**device)
        link, headers = self.stage.link(member), {"Origin": self.stage.url}
        used = page.context.request.post(link, headers=headers, max_redirects=0)
        assert used.status == 303, used.text()
        return page

    def logged_in(self, member: str | None = None, **device: Any) -> Page:
        """Somebody in front of their inbox."""
        page = self.with_session(member, **device)
        page.goto(self.stage.url)
        expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
        return page

    def require_peace(self) -> None:
        """No script of an agent ran, nothing broke the policy, nothing failed."""
        for context in self.contexts:
            for page in context.pages:
                if page.url.startswith("http"):
                    self.complaints += page.evaluate("window.violations || []") if _has_scripts(page) else []
        broken = re.compile(
            r"^\[object Event\]$|net::ERR_FAILED|^htmx:(?:afterRequest|sendError), " if self.streams_break else r"(?!)"
        )
        assert [said for said in self.complaints if not broken.search(said)] == []


def _has_scripts(page: Page) -> bool:
    try:
        return bool(page.evaluate("Array.isArray(window.violations)"))
    except Exception:
        return False


@pytest.fixture(scope="package")
def plane() -> Iterator[Plane]:
    """`cortex up` in a folder of its own."""
    if chromium.found() is None:
        pytest.skip(chromium.MISSING)
    with running("cortex browser ") as plane:
        yield plane


@contextmanager
def program_of(plane: Plane, key: str) -> Iterator[Stage]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=plane.access["url"], headers=headers, timeout=60, trust_env=False) as api:
        yield Stage(plane, api, key)


@pytest.fixture(scope="package")
def stage(plane: Plane) -> Iterator[Stage]:
    """The org of the plane's owner, with the demo's agents."""
    with program_of(plane, plane.access["key"]) as stage:
        yield stage


@contextmanager
def org_of_its_own(plane: Plane, name: str) -> Iterator[Stage]:
    """For a module whose people and policies concern nobody else."""
    made = plane.api.post("/v1/orgs", json={"slug": f"{name}-{uuid4().hex[:8]}", "name": name})
    assert made.status_code == 201, made.text
    redeemed = plane.api.post("/v1/enrolments", json={"code": made.json()["enrolment"]["code"]})
    with program_of(plane, redeemed.json()["secret"]) as stage:
        yield stage


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not for the whole process: while Playwright runs, nothing else can run an event loop in this thread."""
    path = chromium.found()
    if path is None:
        pytest.skip(chromium.MISSING)
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
            with suppress(Error):  # a picture is for people: a busy machine that cannot take one fails no test
                page.screenshot(path=str(Path(folder) / f"{name}.png"))

    return take
