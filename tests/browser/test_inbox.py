"""The five-minute story, in a browser, on a plane that runs: an agent stops, a person decides, the agent goes on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Literal
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE, People, Stage

Picture = Callable[[Page, str], None]
DEMO = "release-demo"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.exe\u200b <b>bold</b>"


DEVICES = pytest.mark.parametrize(
    "phone", [pytest.param(False, marks=pytest.mark.soak), True], ids=["desktop", "phone"]
)
"""Where text must be readable: on a phone, which has the least room. `make soak` looks at a desktop too."""


def version() -> str:
    """A release that no other test ships."""
    return f"2.{uuid4().int % 10_000}.{uuid4().int % 10_000}"


def waiting(stage: Stage, **more: Any) -> dict[str, Any]:
    """A request of the demo agent."""
    return stage.asked(stage.submit(DEMO, version(), **more))


def deny_all(stage: Stage) -> None:
    """What other tests left."""
    pending = {"status": "pending", "limit": "200"}
    for request in stage.api.get("/v1/approvals", params=pending).json()["items"]:
        deny(stage, request)


def deny(stage: Stage, request: dict[str, Any]) -> None:
    shown = {name: request[name] for name in ("version", "input_hash")}
    answer = stage.api.post(f"/v1/approvals/{request['id']}/decide", json={"decision": "denied", **shown})
    assert answer.status_code == 200, answer.text


def open_card(page: Page, stage: Stage, request: dict[str, Any]) -> None:
    page.goto(f"{stage.url}/approvals/{request['id']}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("deploy")


def approve(page: Page) -> None:
    """High risk: two presses."""
    button = page.locator("[data-approve]")
    button.click()
    expect(button).to_contain_text("Press again")
    until_armed(page)
    button.click()


def until_armed(page: Page) -> None:
    """Until a second press counts. The page looks by itself: an assertion would look in steps of half a second."""
    page.locator("[data-approve]").evaluate(_ARMED, PATIENCE)


@pytest.mark.proves("D.77")
def test_approve_on_a_phone_and_watch_it_finish(stage: Stage, people: People, picture: Picture) -> None:
    deny_all(stage)  # an empty inbox shows an arrival at once; any other announces it behind a banner
    page = people.logged_in(phone=True)
    release = version()
    job = stage.submit(DEMO, release)
    row = page.locator("#mine [data-row]", has_text=release)
    expect(row).to_be_visible()  # without a reload
    expect(row).to_contain_text("High risk")
    picture(page, "phone-inbox")
    row.click()
    expect(page.locator(".json").first).to_contain_text(f'"version": "{release}"')
    bar = page.locator("#actions").bounding_box()
    assert bar is not None
    assert bar["y"] + bar["height"] == pytest.approx(844, abs=1), "the actions stand at the bottom of the window"
    sizes = {
        name: page.locator(f"#actions {name}").bounding_box()
        for name in ("[data-approve]", "[data-deny]", "[data-edit]")
    }
    for name, box in sizes.items():
        assert box is not None
        assert box["height"] >= 44, name
        assert box["width"] >= 44, name
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is wider than the phone"
    picture(page, "phone-card")
    left, button = page.locator("#actions .actions-left"), page.locator("#actions [data-approve]")
    expect(left).to_be_visible()
    left_box, button_box = left.bounding_box(), button.bounding_box()
    assert left_box is not None
    assert button_box is not None
    assert 0 <= button_box["y"] - (left_box["y"] + left_box["height"]) <= 12, "the time left is beside Approve"
    approve(page)
    expect(page.locator("#card")).to_have_attribute("data-status", "approved")
    page.get_by_role("link", name="Watch the job").click()
    marker = page.evaluate("window.same = 1")
    expect(page.locator(".job-head .status")).to_contain_text("Completed")
    assert page.evaluate("window.same") == marker, "it finished without a reload"
    expect(page.locator(".steps")).to_contain_text(f"{release} is in production.")
    picture(page, "phone-job")
    assert stage.ended(job["id"])["status"] == "COMPLETED"


@pytest.mark.proves("D.76")
def test_a_nervous_finger_is_one_press(stage: Stage, people: People) -> None:
    """A double click, and a key that is held down, ask for the second press and do not give it."""
    request = waiting(stage)
    page = people.with_session()
    open_card(page, stage, request)
    button = page.locator("[data-approve]")
    button.dblclick()
    until_armed(page)
    page.reload()
    expect(page.locator("#card")).to_have_attribute("data-status", "pending")
    button.focus()
    page.keyboard.down("Enter")
    until_armed(page)
    for _ in range(5):
        page.keyboard.down("Enter")
    expect(page.locator("#card")).to_have_attribute("data-status", "pending")
    page.keyboard.up("Enter")
    page.reload()
    expect(page.locator("#card")).to_have_attribute("data-status", "pending")


@pytest.mark.proves("D.76")
def test_deny_with_a_reason(stage: Stage, people: People, picture: Picture) -> None:
    request = waiting(stage)
    page = people.with_session()
    open_card(page, stage, request)
    picture(page, "desktop-card")
    page.locator("#deny > summary").click()
    page.get_by_label("Reason").fill("not on a Friday")
    picture(page, "desktop-deny")
    page.get_by_role("button", name="Deny this call").click()
    expect(page.locator(".ending")).to_contain_text("Denied by Admin")
    expect(page.locator(".ending")).to_contain_text("not on a Friday")
    picture(page, "desktop-denied")
    job = stage.ended(request["job_id"])
    assert job["status"] == "FAILED"
    assert "not on a Friday" in job["error_message"]


@pytest.mark.proves("D.76")
def test_edit_and_approve_the_difference(stage: Stage, people: People, picture: Picture) -> None:
    request = waiting(stage)
    page = people.with_session()
    open_card(page, stage, request)
    page.keyboard.press("e")
    editor = page.get_by_label("Arguments, as JSON")
    expect(editor).to_have_value(re.compile('"environment": "production"'))
    editor.fill(editor.input_value().replace("production", "staging"))
    picture(page, "desktop-edit")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.locator(".diff")).to_contain_text('"staging"')
    picture(page, "desktop-difference")
    page.get_by_role("button", name="Approve the change").click()
    expect(page.locator(".ending")).to_contain_text("Approved by Admin")
    expect(page.locator(".diff")).to_contain_text('"production"')
    stage.ended(request["job_id"])
    steps = stage.api.get(f"/v1/jobs/{request['job_id']}/steps").json()["items"]
    calls = [call for step in steps for call in step["calls"] if call["tool_name"] == "deploy"]
    assert [call["arguments"]["environment"] for call in calls] == ["staging"]


def test_a_card_that_expires_says_so_by_itself(stage: Stage, people: People, picture: Picture) -> None:
    soon = [{"name": "soon", "target": "deploy", "effect": "requires_approval", "timeout_seconds": 4}]
    page = people.with_session()
    request = waiting(stage, policies=soon)
    open_card(page, stage, request)
    expect(page.locator("#card")).to_have_attribute("data-status", "expired")
    expect(page.locator("[data-approve]")).to_have_count(0)
    picture(page, "desktop-expired")
    assert stage.ended(request["job_id"])["status"] == "FAILED"


@pytest.mark.proves("D.76")
def test_a_card_that_changes_is_announced_and_cannot_be_decided(stage: Stage, people: People, picture: Picture) -> None:
    request = waiting(stage)
    page = people.with_session()
    open_card(page, stage, request)
    page.locator("#deny > summary").click()
    page.get_by_label("Reason").fill("half a thought")
    stage.submit(DEMO, request["arguments"]["version"], session_id=request["session_id"])
    expect(page.locator("#notice")).to_contain_text("This request changed.")
    page.evaluate("document.querySelector('#notice .notice').dataset.same = 'yes'")
    with page.expect_response(re.compile("/live\\?.*told=2")) as again:
        page.evaluate("htmx.trigger('#live', 'look')")
    assert again.value.status == 204
    expect(page.locator("#notice .notice[data-same]")).to_have_count(1)  # heard once
    expect(page.get_by_label("Reason")).to_have_value("half a thought")
    picture(page, "desktop-changed")
    page.locator("#deny > summary").click()
    approve(page)
    expect(page.locator("#notice")).to_contain_text("this now decides 2 calls")
    expect(page.locator(".card-badges")).to_contain_text("×2")
    approve(page)
    expect(page.locator("#card")).to_have_attribute("data-status", "approved")
    assert stage.ended(request["job_id"])["status"] == "COMPLETED"


@pytest.mark.proves("D.76")
def test_of_two_browsers_one_wins_and_the_other_is_told(stage: Stage, people: People, picture: Picture) -> None:
    request = waiting(stage)
    first, second = people.with_session(), people.with_session(phone=True)
    for page in (first, second):
        open_card(page, stage, request)
    # The second one's page stops listening: it acts on what it saw.
    people.streams_break = True
    second.route("**/live*", lambda route: route.abort())
    second.evaluate("document.getElementById('live').removeAttribute('hx-get')")
    approve(first)
    expect(first.locator("#card")).to_have_attribute("data-status", "approved")
    token = second.locator("#deny input[name=form_token]").first.input_value()
    fields = {
        "form_token": token,
        "decision": "denied",
        "reason": "no",
        "version": "1",
        "input_hash": request["input_hash"],
    }
    second.evaluate(
        """([action, fields]) => {
          const form = document.createElement("form");
          form.method = "post"; form.action = action;
          for (const [name, value] of Object.entries(fields)) {
            const field = document.createElement("input");
            field.type = "hidden"; field.name = name; field.value = value; form.append(field);
          }
          document.body.append(form); form.submit();
        }""",
        [f"/approvals/{request['id']}/decide", fields],
    )
    expect(second.locator("#notice")).to_contain_text("Admin was faster: this request is approved.")
    picture(second, "phone-conflict")


@pytest.mark.proves("D.74")
def test_arrivals_wait_behind_a_banner_and_focus_stays(stage: Stage, people: People, picture: Picture) -> None:
    first = waiting(stage)
    page = people.logged_in()
    row = page.locator(f"#row-{first['id']} [data-row]")
    row.focus()
    top = row.bounding_box()
    second = waiting(stage)
    banner = page.locator(".arrivals .banner")
    expect(banner).to_contain_text("1 new")
    picture(page, "desktop-arrivals")
    expect(page.locator(f"#row-{second['id']}")).to_have_count(0)
    expect(row).to_be_focused()
    assert row.bounding_box() == top, "nothing moved"
    deny(stage, first)
    expect(page.locator(f"#row-{first['id']}")).to_contain_text("Denied by Admin")
    expect(row).to_be_focused()
    assert page.evaluate(_FAINT) == [], "also what is over can be read"
    after = row.bounding_box()
    assert after is not None
    assert top is not None
    assert (after["x"], after["y"]) == (top["x"], top["y"])
    banner.click()
    expect(page.locator(f"#mine #row-{second['id']}")).to_be_visible()
    expect(page.locator(".arrivals .banner")).to_have_count(0)


@pytest.mark.proves("D.74")
def test_without_the_stream_a_page_looks_by_itself(stage: Stage, people: People) -> None:
    people.streams_break = True
    page = people.logged_in()
    page.route(
        re.compile(r"/live($|\?)"),
        lambda route: route.abort() if "/inbox/" not in route.request.url else route.continue_(),
    )
    page.goto(stage.url)
    request = waiting(stage)
    expect(page.locator(f"#row-{request['id']}").or_(page.locator(".arrivals .banner"))).to_be_visible()


@pytest.mark.proves("D.77")
def test_a_reader_hears_that_time_runs_out(stage: Stage, people: People) -> None:
    soon = [{"name": "soon", "target": "deploy", "effect": "requires_approval", "timeout_seconds": 360}]
    request = waiting(stage, policies=soon)
    page = people.with_session()
    page.clock.install()
    open_card(page, stage, request)
    announcer, left = page.locator("#announcer"), page.locator("#actions .left")
    expect(announcer).to_have_text("")
    expect(left).not_to_have_class(re.compile("left-soon"))
    page.clock.fast_forward(61_000)
    expect(announcer).to_have_text("Five minutes left to decide.")
    expect(left).to_have_class(re.compile("left-soon"))
    page.clock.fast_forward(240_000)
    expect(announcer).to_have_text("One minute left to decide.")


@pytest.mark.proves("D.75")
def test_hostile_text_is_shown_and_does_nothing(stage: Stage, people: People, picture: Picture) -> None:
    slug = f"evil-{uuid4().hex[:8]}"
    call = {"tool": "deploy", "arguments": {"version": HOSTILE, "environment": HOSTILE}}
    stage.agent(slug, [{"text": HOSTILE, "calls": [call]}, {"text": HOSTILE}], name=f"{HOSTILE[:120]} {slug}")
    request = stage.asked(stage.submit(slug, HOSTILE))
    page = people.logged_in()
    row = page.locator(f"#row-{request['id']}")
    expect(row).to_contain_text("hidden characters")
    expect(row).to_contain_text("⟨U+202E⟩")
    open_card(page, stage, request)
    card = page.locator("#card")
    for text in ("⟨U+202E⟩", "⟨U+200B⟩", "<script>alert(2)</script>", "<b>bold</b>", "characters that are not seen"):
        expect(card).to_contain_text(text)
    assert card.locator("img, script, b").count() == 0
    picture(page, "desktop-hostile")
    page.locator("#deny > summary").click()
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("button", name="Deny this call").click()
    expect(page.locator(".ending")).to_contain_text("⟨U+202E⟩")
    for path in ("/", f"/jobs/{request['job_id']}", "/jobs", f"/approvals/{request['id']}"):
        page.goto(stage.url + path)
        expect(page.locator("main")).to_contain_text("⟨U+202E⟩")
        assert page.locator("main img, main script, main b").count() == 0
        assert page.evaluate("window.violations") == []


@pytest.mark.proves("D.77")
def test_everything_with_keys_alone(stage: Stage, people: People, picture: Picture) -> None:
    requests = [waiting(stage), waiting(stage)]
    page = people.logged_in()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    picture(page, "desktop-help")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.href")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.href") != first
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.href") == first
    chosen = first.rpartition("/")[2]
    page.keyboard.press("Enter")
    expect(page.locator("#card")).to_have_attribute("data-approval", chosen)
    page.keyboard.press("a")
    expect(page.locator("[data-approve]")).to_contain_text("Press again")
    expect(page.locator("#card")).to_have_attribute("data-status", "pending")
    until_armed(page)
    page.keyboard.press("a")
    expect(page.locator("#card")).to_have_attribute("data-status", "approved")
    page.keyboard.press("u")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    other = next(request for request in requests if request["id"] != chosen)
    page.locator(f"#row-{other['id']} [data-row]").focus()
    page.keyboard.press("d")
    reason = page.get_by_label("Reason")
    expect(reason).to_be_focused()
    page.keyboard.type("a jaded deed")  # letters that are keys elsewhere
    expect(reason).to_have_value("a jaded deed")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".ending")).to_contain_text("a jaded deed")


@pytest.mark.proves("D.77")
def test_everything_without_scripts(stage: Stage, people: People, picture: Picture) -> None:
    requests = [waiting(stage) for _ in range(3)]
    page = people.logged_in(scripts=False, phone=True)
    page.locator(f"#row-{requests[0]['id']} a").click()
    picture(page, "phone-without-scripts")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Approve deploy?")
    picture(page, "phone-confirm")
    page.get_by_role("button", name="Yes, approve").click()
    expect(page.locator(".ending")).to_contain_text("Approved by Admin")
    open_card(page, stage, requests[1])
    page.locator("#deny > summary").click()
    page.get_by_label("Reason").fill("no")
    page.get_by_role("button", name="Deny this call").click()
    expect(page.locator(".ending")).to_contain_text("Denied by Admin")
    open_card(page, stage, requests[2])
    page.get_by_role("link", name="Edit").click()
    editor = page.get_by_label("Arguments, as JSON")
    editor.fill(editor.input_value() + ",")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    editor.fill('{"version": "1", "environment": "staging"}')
    page.get_by_role("button", name="Show the difference").click()
    picture(page, "phone-difference")
    page.get_by_role("button", name="Approve the change").click()
    expect(page.locator(".ending")).to_contain_text("Approved by Admin")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert stage.ended(requests[0]["job_id"])["status"] == "COMPLETED"
    assert stage.ended(requests[1]["job_id"])["status"] == "FAILED"
    assert stage.ended(requests[2]["job_id"])["status"] == "COMPLETED"


@pytest.mark.proves("D.72", "D.73")
def test_the_session_is_out_of_reach_of_scripts_and_of_other_sites(stage: Stage, people: People) -> None:
    page = people.logged_in()
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (
        "cortex_session", True, "Lax", "/",
    )  # fmt: skip
    assert page.evaluate("document.cookie") == ""
    request = waiting(stage)
    evil = page.context.new_page()
    # Another site's form brings no token, and since the cookie is lax, no cookie either.
    evil.route("http://evil.test/", lambda route: route.fulfill(
        content_type="text/html",
        body=f"<form method=post action='{stage.url}/approvals/{request['id']}/decide'>"
        f"<input name=decision value=approved><input name=version value=1>"
        f"<input name=input_hash value={request['input_hash']}><input name=confirmed value=yes></form>",
    ))  # fmt: skip
    evil.goto("http://evil.test/")
    evil.evaluate("document.forms[0].submit()")
    evil.wait_for_url(re.compile("/decide$"))
    assert "Approved" not in evil.content()
    still = stage.api.get(f"/v1/approvals/{request['id']}").json()
    assert still["approval"]["status"] == "pending"
    refused = page.evaluate(
        """async (path) => (await fetch(path, {method: "POST", body: new URLSearchParams({decision: "approved"})})).status""",
        f"/approvals/{request['id']}/decide",
    )
    assert refused == 403, "a form of our own site without its token"


@pytest.mark.proves("D.70")
def test_a_link_works_once_and_a_session_ends_everywhere(stage: Stage, people: People, picture: Picture) -> None:
    link = stage.link()
    page = people.somebody()
    page.goto(link)
    picture(page, "desktop-link")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    other = people.somebody()
    other.goto(link)
    expect(other.get_by_role("heading", name="This link does not work")).to_be_visible()
    picture(other, "desktop-link-refused")
    tab = page.context.new_page()
    tab.goto(stage.url)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    # As when somebody turns to the tab, which may have learned it already and shows another page then.
    tab.locator("body").dispatch_event("visibilitychange")
    expect(tab.get_by_role("heading", name="Log in")).to_be_visible()
    picture(tab, "desktop-login")


@pytest.mark.proves("D.78")
def test_the_page_of_a_job_lives(stage: Stage, people: People, picture: Picture) -> None:
    job = stage.submit(DEMO, version())
    page = people.with_session()
    page.goto(f"{stage.url}/jobs/{job['id']}")
    expect(page.locator(".job-head .status")).to_contain_text("Waiting for a person")
    expect(page.locator(".waiting-card")).to_contain_text("May this run?")
    expect(page.locator("rect.bar-waiting-for-approval")).to_have_count(1)
    page.locator(".call").first.locator("summary").click()
    picture(page, "desktop-job")
    other = people.with_session(phone=True)
    other.goto(f"{stage.url}/jobs/{job['id']}")
    other.locator(".steer-cancel > summary").click()
    other.get_by_label("Reason").fill("changed my mind")
    picture(other, "phone-cancel")
    other.get_by_role("button", name="Cancel this job").click()
    expect(page.locator(".job-head .status")).to_contain_text("Cancelled")
    expect(page.locator(".call").first).to_have_attribute("open", "")
    page.goto(f"{stage.url}/jobs")
    expect(page.locator(f"#job-{job['id']}")).to_contain_text("Cancelled")
    picture(page, "desktop-jobs")


@pytest.mark.proves("D.77")
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_text_can_be_read_and_everything_has_a_name(
    stage: Stage, people: People, picture: Picture, phone: bool
) -> None:
    request = waiting(stage)
    page = people.with_session(phone=phone)
    device = "phone" if phone else "desktop"
    for name, path in {
        "inbox": "/",
        "card": f"/approvals/{request['id']}",
        "edit": f"/approvals/{request['id']}/edit",
        "jobs": "/jobs",
        "job": f"/jobs/{request['job_id']}",
        "missing": "/jobs/nothing",
    }.items():
        page.goto(stage.url + path)
        require_readable(page, picture, device, name)
        assert page.locator("main").count() == 1


def require_readable(page: Page, picture: Picture, device: str, name: str) -> None:
    """Contrast of at least 4.5 for all text in both schemes, a label on every control, no sideways scrolling."""
    for scheme in SCHEMES:
        # Colours that move from one scheme to the other are those of neither.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        picture(page, f"{device}-{scheme}-{name}")
        assert page.evaluate(_FAINT) == [], f"{name}, {scheme}"
    phone = device == "phone"
    assert page.evaluate(_NAMELESS) == [], name
    assert page.evaluate(_UNREACHABLE) == [], name
    assert page.evaluate(_ZOOMING) == [] or not phone, name
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if phone else 1280), name


def test_two_at_the_same_instant(stage: Stage, people: People) -> None:
    """Many requests of two sessions at once: one outcome, and nobody is left without an answer."""
    request = waiting(stage)
    cookies = []
    for _ in range(2):
        page = people.with_session()
        open_card(page, stage, request)
        (cookie,) = page.context.cookies()
        cookies.append((cookie["value"], page.locator("#deny input[name=form_token]").first.input_value()))
    codes: list[int] = []

    def press(cookie: str, token: str, decision: str) -> None:
        fields = {
            "form_token": token, "decision": decision, "version": "1", "input_hash": request["input_hash"],
            "confirmed": "yes",
        }  # fmt: skip
        cookies = {"cortex_session": cookie}
        with httpx.Client(base_url=stage.url, cookies=cookies, timeout=60, trust_env=False) as client:
            codes.append(client.post(f"/approvals/{request['id']}/decide", data=fields).status_code)

    threads = [
        threading.Thread(target=press, args=(*cookies[n % 2], "approved" if n % 2 else "denied")) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [303] * 4 + [409] * 4


_ARMED = """
(button, patience) => new Promise((armed, failed) => {
  const last = performance.now() + patience;
  const look = () => {
    if (button.dataset.armed === "yes") armed();
    else if (performance.now() > last) failed(new Error("a second press does not count"));
    else setTimeout(look, 20);
  };
  look();
})
"""
# The ratio of WCAG for every piece of text that is seen, against the first background behind it that is not clear.
_FAINT = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
      known.set(colour, [...canvas.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(colour);
  };
  const light = ([r, g, b]) => {
    const part = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const over = (top, under) => top.slice(0, 3).map((v, n) => (v * top[3] + under[n] * (255 - top[3])) / 255);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), rgba(getComputedStyle(document.body).backgroundColor).slice(0, 3));
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || text === "·" || !element.checkVisibility() || element.closest(".unheard, .skip, svg, [disabled]")) continue;
    const back = behind(element);
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) opacity *= Number(getComputedStyle(e).opacity);
    const colour = rgba(getComputedStyle(element).color);
    const front = over([...colour.slice(0, 3), colour[3] * opacity], back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)} ${element.className} ${text.slice(0, 30)}`);
  }
  return faint;
}
"""
_NAMELESS = """
() => [...document.querySelectorAll("a, button, summary, textarea, input:not([type=hidden])")]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.innerText.trim() || e.getAttribute("aria-label") || (e.labels && e.labels.length)))
  .map((e) => e.outerHTML.slice(0, 100))
"""
_UNREACHABLE = """
() => [...document.querySelectorAll("pre, .said")]
  .filter((e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowY) && e.tabIndex < 0)
  .map((e) => e.outerHTML.slice(0, 100))
"""
# Phones zoom into a field whose letters are smaller.
_ZOOMING = """
() => [...document.querySelectorAll("textarea, input:not([type=hidden])")]
  .filter((e) => parseFloat(getComputedStyle(e).fontSize) < 16)
  .map((e) => e.outerHTML.slice(0, 100))
"""
