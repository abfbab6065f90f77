"""Around every request: health, metrics, request ids, safe headers, one log line."""

from __future__ import annotations

import re

import asyncpg
import httpx
import pytest
from starlette.routing import Match
from structlog.testing import capture_logs

from cortex_plane.db.database import Database
from cortex_plane.http.app import PathTable
from tests.fixtures.people import World


async def test_health_says_that_the_process_answers(http: httpx.AsyncClient, db: Database) -> None:
    answer = await http.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    await db.close()
    assert (await http.get("/healthz")).status_code == 200


async def test_readiness_follows_the_schema(http: httpx.AsyncClient, admin: asyncpg.Connection) -> None:
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
    await admin.execute("update schema_migration set checksum = 'old' where name = 'authenticate'")
    outdated = await http.get("/readyz")
    assert outdated.status_code == 503
    assert outdated.headers["Content-Type"] == "application/problem+json"
    assert outdated.json()["code"] == "schema_outdated"
    assert "authenticate" in outdated.json()["detail"]
    assert "cortex db migrate" in outdated.json()["hint"]
    await admin.execute("insert into schema_migration (name, kind, checksum) values ('9999_x', 'migration', 'x')")
    assert (await http.get("/readyz")).json()["code"] == "unknown_migration"


async def test_without_its_database_the_plane_says_try_again(
    http: httpx.AsyncClient, world: World, db: Database
) -> None:
    await db.close()
    answer = await http.get("/v1/me", headers=world.admin.headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert (await http.get("/readyz")).status_code == 503


async def test_metrics_count_by_route_and_tenant_and_name_no_session_or_job(
    http: httpx.AsyncClient, world: World
) -> None:
    inbound = {"external_user_id": "u-1", "agent": "deployer", "text": "Hello"}
    path = f"/v1/connections/{world.connection.id}/messages"
    delivery = (await http.post(path, json=inbound, headers=world.service.headers)).json()
    await http.get("/v1/teams/main", headers=world.admin.headers)
    await http.get("/agents/deployer", headers=world.admin.headers)
    await http.get("/v1/me", headers={"Authorization": "Bearer nonsense"})
    await http.get("/nowhere/u-17")
    answer = await http.get("/metrics", headers=world.admin.headers)
    assert answer.headers["Content-Type"].startswith("text/plain")
    lines = answer.text.splitlines()

    def value(name: str, **labels: str) -> float:
        wanted = [f'{key}="{text}"' for key, text in labels.items()]
        found = [line for line in lines if line.startswith(name) and all(w in line for w in wanted)]
        assert len(found) == 1, (name, labels, found)
        return float(found[0].rsplit(" ", 1)[1])

    tenant = str(world.org_id)
    assert value("messages_ingested_total", tenant_id=tenant) == 1
    assert value("jobs_created_total", tenant_id=tenant) == 1
    assert value("authentication_failures_total", reason="key_unknown") == 1
    ingest = "/v1/connections/{connection_id}/messages"
    assert value("http_requests_total", method="POST", route=ingest, status="201") == 1
    assert value("http_requests_total", route="/v1/teams/{team}", status="200") == 1
    assert value("http_requests_total", route="/agents/{agent}", status="200") == 1
    assert value("http_requests_total", route="/v1/me", status="401") == 1
    assert value("http_requests_total", route="unmatched", status="404") == 1
    assert value("http_request_duration_seconds_count", route="/v1/teams/{team}") == 1
    for id in (delivery["session_id"], delivery["job_id"], str(world.admin.actor.key_id), "u-17"):
        assert id not in answer.text


@pytest.mark.proves("D.24")
async def test_a_request_id_is_taken_over_or_made(http: httpx.AsyncClient, world: World) -> None:
    for given in ("abc-123", "a.b_c", "x" * 100):
        answer = await http.get("/v1/me", headers={**world.admin.headers, "X-Request-Id": given})
        assert answer.headers["X-Request-Id"] == given
    made = set()
    for bad in ("", "a b", "x" * 101, "a\tb", "<script>", "a\x7fb"):
        answer = await http.get("/nowhere", headers={"X-Request-Id": bad})
        made.add(answer.headers["X-Request-Id"])
        assert answer.json()["request_id"] == answer.headers["X-Request-Id"]
    assert len(made) == 6
    assert all(re.fullmatch(r"[0-9a-f]{32}", each) for each in made)


async def test_every_answer_carries_safe_headers(http: httpx.AsyncClient, world: World) -> None:
    large = {**world.admin.headers, "Content-Length": "99999999"}
    answers = [
        await http.get("/v1/me", headers=world.admin.headers),
        await http.get("/v1/me"),
        await http.get("/nowhere"),
        await http.delete("/v1/me"),
        await http.get("/metrics"),
        await http.post("/v1/teams", content=b"{}", headers=large),
    ]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Request-Id"]


@pytest.mark.proves("D.24")
async def test_a_request_is_one_log_line_without_its_secrets(http: httpx.AsyncClient, world: World) -> None:
    with capture_logs() as lines:
        await http.get("/v1/teams/main?limit=1", headers=world.admin.headers)
        await http.get("/v1/me", headers={"Authorization": f"Bearer {world.service.secret[:-1]}x"})
    first, second = lines
    assert (first["event"], first["method"], first["status"]) == ("request", "GET", 200)
    assert (first["route"], first["org"]) == ("/v1/teams/{team}", str(world.org_id))
    assert first["key"] == str(world.admin.actor.key_id)
    assert (second["status"], second["org"], second["key"]) == (401, None, None)
    assert "cortex_key_" not in str(lines)


@pytest.mark.parametrize("path", ["*", ""])
async def test_a_target_that_is_no_path_is_not_found(path: str) -> None:
    """`OPTIONS * HTTP/1.1` is a legal request."""
    match, _ = PathTable().matches({"type": "http", "path": path, "method": "OPTIONS"})
    assert match is Match.NONE
