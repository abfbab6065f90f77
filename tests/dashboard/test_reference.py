"""The page of the API: for everybody, without scripts, and with nothing from elsewhere."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.http.test_http_routes import document, documented_routes


@pytest.mark.proves("D.792")
async def test_the_page_shows_every_route_and_type_of_the_document(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    whole = await document(http)
    for route, entry in documented_routes(whole).items():
        assert f"<code>{route}</code>" in page.text
        assert f'id="{entry["operationId"]}"' in page.text
    for name in whole["components"]["schemas"]:
        assert f'id="schema-{name}"' in page.text
    assert "The last completed step." in page.text
    assert "<code>next_cursor</code> of the previous page" in page.text
    assert "`" not in page.text
    anchors = re.findall(r' id="([^"]+)"', page.text)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r'href="#([^"]+)"', page.text)) <= set(anchors)


@pytest.mark.proves("D.792")
async def test_the_page_loads_nothing_from_elsewhere_and_runs_no_script(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert not re.search(r"<script|<style|\son\w+=|style=", page.text)
    loaded = re.findall(r'<link [^>]*href="([^"]+)"|src="([^"]+)"', page.text)
    assert loaded
    for address in (one or other for one, other in loaded):
        assert address.startswith("/assets/")
        assert (await http.get(address)).status_code == 200
    assert not re.search(r'href="(?!#|/)', page.text)
