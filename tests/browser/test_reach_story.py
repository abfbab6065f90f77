"""A request finds its people: invited by mail, escalated, handed on, decided from two browsers and one mail, and proven
offline. And whatever a mail scanner does with the links of those mails, nothing is decided."""

from __future__ import annotations

import email
import email.policy
import mailbox
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.planes import Plane
from tests.browser.conftest import People, Stage, org_of_its_own
from tests.browser.test_inbox import approve, open_card

Picture = Callable[[Page, str], None]
VERIFIER = Path(__file__).parents[2] / "examples" / "verify_export.py"
POLICIES = """
policies:
  - name: three-of-us
    target: deploy
    effect: requires_approval
    template: critical_path
    clearance: 2
    quorum: 3
    approvers: {{members: [Cal, Dan, Eve]}}
    timeout: 20m
    escalate_before: {before}
    escalate_to: [{{roles: [approver]}}]
  - {{name: rest, target: "*", effect: allow}}
"""
AT_ONCE = "19m59s"
"""Of twenty minutes: the clock of the story is a short one."""


@pytest.fixture(scope="module")
def stage(plane: Plane) -> Iterator[Stage]:
    with org_of_its_own(plane, "story") as stage:
        yield stage


def mails(stage: Stage) -> list[EmailMessage]:
    box = mailbox.Maildir(str(stage.plane.folder / ".cortex" / "mail"), create=False)
    read = [email.message_from_bytes(box.get_bytes(key), policy=email.policy.default) for key in box.keys()]  # noqa: SIM118
    return [each for each in read if isinstance(each, EmailMessage)]


def mail_to(stage: Stage, address: str, subject: str) -> EmailMessage:
    def look() -> EmailMessage | None:
        return next((m for m in mails(stage) if address in m["To"] and subject in m["Subject"]), None)

    found: EmailMessage = stage.until(look)
    return found


def text_of(mail: EmailMessage) -> str:
    part = mail.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


def links(mail: EmailMessage) -> list[str]:
    part = mail.get_body(("html",))
    assert part is not None
    both = text_of(mail) + str(part.get_content()).replace("&amp;", "&")
    return sorted(set(re.findall(r"http://[^\s\"'<>]+", both)))


def link(mail: EmailMessage, word: str) -> str:
    found = re.search(rf"{word}: (http://\S+)", text_of(mail))
    assert found is not None, text_of(mail)
    return found[1]


def address_of(name: str) -> str:
    return f"{name.lower()}-{uuid4().hex[:6]}@example.com"


def invite(stage: Stage, name: str, role: str) -> str:
    """The address to which the mail goes."""
    address = address_of(name)
    draft = {"email": address, "display_name": name, "roles": [role], "clearance": 2}
    answer = stage.api.post("/v1/members/invite", json=draft)
    assert answer.status_code == 201, answer.text
    return address


def joined(stage: Stage, people: People, address: str, *, phone: bool = False) -> Page:
    """Somebody who was invited opens the mail in a browser of their own, and is in."""
    page = people.somebody(phone=phone)
    page.goto(next(each for each in links(mail_to(stage, address, "")) if "/verify/" in each))
    page.get_by_role("button", name="Yes, it is mine").click()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    return page


def member(stage: Stage, name: str) -> str:
    body = {"display_name": name, "roles": ["operator"], "clearance": 2}
    return str(stage.api.post("/v1/members", json=body).json()["id"])


def apply(stage: Stage, before: str) -> None:
    applied = stage.api.post("/v1/policies", json={"text": POLICIES.format(before=before)})
    assert applied.status_code in (200, 201), applied.text


def deploying(stage: Stage) -> dict[str, Any]:
    slug = f"shipper-{uuid4().hex[:8]}"
    call = {"tool": "deploy", "arguments": {"version": f"7.{uuid4().int % 10_000}.0", "environment": "production"}}
    stage.agent(slug, [{"text": "I deploy it.", "calls": [call]}, {"text": "Done."}])
    return stage.asked(stage.submit(slug, "Ship it, please."))


@pytest.mark.proves("D.199")
def test_invited_escalated_handed_on_decided_from_two_browsers_and_a_mail_and_proven(
    stage: Stage, people: People, picture: Picture
) -> None:
    ada = people.with_session()
    address = address_of("Bea")
    words = ("--email", address, "--name", "Bea", "--clearance", "2", "--role", "approver")
    stage.cortex("member", "invite", *words)
    bea = joined(stage, people, address)
    fay = joined(stage, people, invite(stage, "Fay", "member"), phone=True)
    ada.goto(stage.url + "/mail")
    expect(ada.locator(".list")).to_contain_text("fay-")
    picture(ada, "desktop-mails")
    cal, dan, _ = [member(stage, name) for name in ("Cal", "Dan", "Eve")]
    apply(stage, AT_ONCE)

    request = deploying(stage)
    escalated = mail_to(stage, "bea-", "scalated")
    assert request["id"] in text_of(escalated)
    open_card(bea, stage, request)
    expect(bea.locator("#card")).to_contain_text("Escalated to level 1")
    picture(bea, "desktop-escalated")
    bea.get_by_role("link", name="Hand it on").click()
    if not bea.locator("#delegate-to").is_visible():
        bea.locator("#delegate > summary").click()
    bea.get_by_label("To", exact=True).select_option("Fay")
    bea.locator("#delegate-reason").fill("You know this service better.")
    bea.get_by_role("button", name="Hand it on").click()
    expect(bea.locator(".hops")).to_contain_text("Fay")

    for who in (people.with_session(cal), people.with_session(dan)):
        open_card(who, stage, request)
        approve(who)
        expect(who.locator("#actions")).to_contain_text("You said yes.")
    assert stage.api.get(f"/v1/approvals/{request['id']}").json()["approval"]["status"] == "pending"

    fay.goto(link(mail_to(stage, "fay-", "Delegated to you"), "Approve"))
    expect(fay.locator("#card")).to_contain_text("2 so far; it needs 3 votes")
    picture(fay, "phone-mail-link")
    fay.locator("#actions").get_by_role("button").click()
    expect(fay.locator("main")).to_contain_text("Approved")
    picture(fay, "phone-mail-decided")
    assert stage.ended(request["job_id"])["status"] == "COMPLETED"
    mail_to(stage, "fay-", "Approved by")
    mail_to(stage, "bea-", "Approved by")

    prove(stage, request["id"])


def prove(stage: Stage, id: str) -> None:
    """Offline: without a plane, a key or a database."""
    plane = stage.plane
    keys = stage.api.get("/v1/audit/keys").json()["items"]
    (fingerprint,) = {key["fingerprint"] for key in keys}
    stage.cortex("approval", "receipt", id, "--out", "receipt.json")
    assert stage.api.post("/v1/audit/roots").is_success
    assert stage.api.get("/v1/audit/roots").json()["items"]
    stage.cortex("audit", "export", "reach.jsonl")
    nowhere = plane.folder / "nowhere"
    nowhere.mkdir()
    for words in (
        ("approval", "receipt", "--verify", "../receipt.json", "--key", fingerprint),
        ("audit", "verify", "--export", "../reach.jsonl", "--key", fingerprint),
    ):
        ran = offline([sys.executable, "-m", "cortex_plane", *words], plane.environment, nowhere)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    receipt = plane.folder / "receipt.json"
    false = plane.folder / "false.json"
    false.write_text(receipt.read_text().replace("approved", "denied__"))
    ran = offline(
        [sys.executable, "-m", "cortex_plane", "approval", "receipt", "--verify", str(false)],
        plane.environment,
        nowhere,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    ran = offline([sys.executable, str(VERIFIER), "../reach.jsonl"], plane.environment, nowhere)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def offline(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    away = {**environment, "CORTEX_URL": "http://127.0.0.1:1", "CORTEX_KEY": "none", "CORTEX_HOME": str(folder)}
    return subprocess.run(words, cwd=folder, env=away, capture_output=True, text=True, timeout=180)


@pytest.mark.proves("D.198")
def test_whatever_fetches_every_link_of_every_mail_decides_nothing(stage: Stage, people: People) -> None:
    before = {str(mail["Message-ID"]) for mail in mails(stage)}
    scanned = joined(stage, people, invite(stage, "Gus", "approver"))
    mail_to(stage, invite(stage, "Hal", "approver"), "")
    policies = "policies: [{name: one, target: deploy, effect: requires_approval, template: dev_review}]"
    assert stage.api.post("/v1/policies", json={"text": policies}).status_code in (200, 201)
    request = deploying(stage)
    stage.until(lambda: [m for m in mails(stage) if request["id"] in text_of(m)])
    sent = [mail for mail in mails(stage) if str(mail["Message-ID"]) not in before]
    everything = sorted({url for mail in sent for url in links(mail)})
    assert [url for url in everything if "/callback/" in url and request["id"] in url]
    assert [url for url in everything if "/verify/" in url]
    with httpx.Client(timeout=30, trust_env=False, follow_redirects=True) as scanner:
        for url in everything:
            for method in ("HEAD", "GET"):
                assert scanner.request(method, url).status_code < 500, url
    # A browser that runs scripts, also one that is logged in as the very person.
    for page in (people.somebody(), scanned):
        for url in everything:
            page.goto(url)
    details = stage.api.get(f"/v1/approvals/{request['id']}").json()
    assert (details["approval"]["status"], details["votes"]) == ("pending", [])
    members = {m["display_name"]: m["id"] for m in stage.api.get("/v1/members").json()["items"]}
    (mapping,) = stage.api.get(f"/v1/members/{members['Hal']}/mappings").json()["items"]
    assert mapping["verified_at"] is None
