"""The page of the API in real browsers: for everybody, on a desktop and on a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import People, Stage
from tests.browser.test_inbox import require_readable


@pytest.mark.proves("D.792")
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_the_reference_is_read_at_any_width(
    stage: Stage, people: People, picture: Callable[[Page, str], None], phone: bool
) -> None:
    page = people.somebody(phone=phone)
    page.goto(f"{stage.url}/docs")
    require_readable(page, picture, "phone" if phone else "desktop", "reference")
    page.get_by_role("navigation", name="Sections").get_by_role("link", name="jobs", exact=True).click()
    operation = page.locator("#get_job_v1_jobs__job_id__get")
    operation.locator("summary").click()
    expect(operation.get_by_text("The id of the job.")).to_be_visible()
    term, text = operation.locator("dt").first.bounding_box(), operation.locator("dd").first.bounding_box()
    assert term is not None
    assert text is not None
    assert (text["y"] >= term["y"] + term["height"]) == phone, "beside its name, below it on a phone"
    assert text["width"] > 300
    operation.get_by_role("link", name="Job", exact=True).click()
    expect(page.locator("#schema-Job").get_by_role("heading")).to_be_in_viewport()
