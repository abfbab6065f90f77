"""The phone on which channels are tried: in real browsers, on a plane that runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import People, Stage
from tests.browser.test_inbox import DEVICES, require_readable

Picture = Callable[[Page, str], None]
TRY = "/channels/try"


def open_phone(stage: Stage, people: People, app: str = "telegram", **device: Any) -> Page:
    """Started, if nobody has done so yet."""
    page = people.with_session(**device)
    page.goto(stage.url + TRY)
    start = page.get_by_role("button", name="Start")
    if start.count():
        start.click()
    page.goto(f"{stage.url}{TRY}/{app}")
    return page


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def app(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Apps").get_by_role("link", name=re.compile(name)).click()


def test_chat_and_approve_on_a_phone(stage: Stage, people: People, picture: Picture) -> None:
    page = open_phone(stage, people, phone=True)
    say(page, "ship 3.1")
    expect(page.get_by_label("Message")).to_have_value("")
    request = page.locator(".say-theirs", has_text="ship 3.1").filter(has_text="Approval needed")
    expect(request).to_have_count(1)
    picture(page, "phone-try-card")
    app(page, "Slack")
    card = page.locator(".say-theirs", has_text="ship 3.1").filter(has_text="Approval needed")
    expect(card.get_by_role("button", name="Approve")).to_be_visible()
    card.get_by_role("button", name="Approve").click()
    expect(page.locator(".say-theirs", has_text="ship 3.1").first).to_contain_text("Approved by Admin")
    picture(page, "phone-try-approved")
    app(page, "Telegram")
    expect(page.locator("#chat")).to_contain_text("Done: “ship 3.1”. A person approved it first.")
    expect(page.locator(".say-theirs", has_text="ship 3.1").first.get_by_role("button")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_arrives_is_shown_at_once_and_disturbs_nobody(stage: Stage, people: People) -> None:
    """Two tabs: what is written in one appears in the other, where somebody types."""
    first, second = open_phone(stage, people), open_phone(stage, people)
    second.get_by_label("Message").fill("half a sentence")
    say(first, "hello from the first tab")
    expect(second.locator(".say-mine", has_text="hello from the first tab")).to_be_visible()
    expect(second.get_by_label("Message")).to_have_value("half a sentence")
    expect(second.locator("#chat")).to_contain_text("Hello, I am the demo agent.")
    assert second.locator("#chat").evaluate("(chat) => Math.abs(chat.scrollTop) < 4"), "the newest is in view"


def test_slack_asks_for_a_reason_in_a_form(stage: Stage, people: People, picture: Picture) -> None:
    page = open_phone(stage, people, "slack")
    say(page, "ship 3.2")
    card = page.locator(".say-theirs", has_text="ship 3.2").filter(has_text="Approval needed")
    card.get_by_role("button", name="Deny").click()
    form = page.get_by_role("dialog", name="Deny")
    expect(form.get_by_label("Reason")).to_be_focused()
    form.get_by_label("Reason").fill("not before Monday")
    picture(page, "desktop-try-form")
    form.get_by_role("button", name="Send").click()
    expect(form).to_have_count(0)
    expect(page.locator(".say-theirs", has_text="ship 3.2").first).to_contain_text("Denied by Admin")
    expect(page.locator(".say-theirs", has_text="ship 3.2").first).to_contain_text("not before Monday")


def test_telegram_asks_for_a_reason_by_a_reply_without_scripts(stage: Stage, people: People, picture: Picture) -> None:
    page = open_phone(stage, people, phone=True, scripts=False)

    def look_until_there(what: Locator) -> None:
        def look() -> bool:
            page.get_by_role("link", name="Look again").click()
            return what.count() == 1

        stage.until(look)

    say(page, "ship 3.3")
    card = page.locator(".say-theirs", has_text="ship 3.3").filter(has_text="Approval needed")
    look_until_there(card)
    card.get_by_role("button", name="Deny").click()
    look_until_there(page.locator(".phone-replying"))
    picture(page, "phone-try-reply")
    say(page, "too late in the day")
    denied = page.locator(".say-theirs", has_text="ship 3.3").filter(has_text="Denied by Admin")
    look_until_there(denied)
    expect(denied).to_contain_text("too late in the day")


def test_text_of_people_does_nothing(stage: Stage, people: People) -> None:
    page = open_phone(stage, people)
    say(page, "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b>")
    expect(page.locator(".say-mine", has_text="<b>bold</b>")).to_be_visible()
    assert page.locator("#chat img, #chat script, #chat b").count() == 0


@DEVICES
@pytest.mark.parametrize("name", ["telegram", "slack"])
def test_phone_is_readable(stage: Stage, people: People, picture: Picture, phone: bool, name: str) -> None:
    device = "phone" if phone else "desktop"
    page = open_phone(stage, people, name, phone=phone)
    release = "ship 3.4" if name == "telegram" else "ship 3.5"
    say(page, release)
    card = page.locator(".say-theirs", has_text=release).filter(has_text="Approval needed").first
    expect(card).to_be_visible()
    require_readable(page, picture, device, f"try-{name}")
    card.get_by_role("button", name="Deny").click()
    asks = page.get_by_role("dialog", name="Deny") if name == "slack" else page.locator(".phone-replying")
    expect(asks).to_be_visible()
    require_readable(page, picture, device, f"try-{name}-reason")
    if name == "slack":
        page.get_by_role("button", name="Cancel").click()
    else:
        say(page, "/skip")
    expect(asks).to_have_count(0)


@DEVICES
def test_start_is_readable(stage: Stage, people: People, picture: Picture, phone: bool) -> None:
    """Somebody who has not started it."""
    member = stage.made("/v1/members", {"display_name": "Bea", "roles": ["approver"]})["id"]
    page = people.with_session(member, phone=phone)
    page.goto(stage.url + TRY)
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    require_readable(page, picture, "phone" if phone else "desktop", "try-start")
