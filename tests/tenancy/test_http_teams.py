from __future__ import annotations

import httpx
import pytest

from tests.fixtures.people import World


@pytest.mark.proves("D.10")
async def test_teams_have_one_level_of_parents(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    parent = await http.post("/v1/teams", json={"slug": "eng", "name": "Eng"}, headers=headers)
    child = await http.post("/v1/teams", json={"slug": "infra", "name": "Infra", "parent": "eng"}, headers=headers)
    assert child.status_code == 201
    assert child.json()["parent_id"] == parent.json()["id"]
    by_id = {"slug": "data", "name": "Data", "parent": parent.json()["id"]}
    assert (await http.post("/v1/teams", json=by_id, headers=headers)).status_code == 201
    deep = {"slug": "deep", "name": "Deep", "parent": "infra"}
    refused = await http.post("/v1/teams", json=deep, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "team_too_deep")
    orphan = await http.post("/v1/teams", json={**deep, "parent": "nowhere"}, headers=headers)
    assert (orphan.status_code, orphan.json()["code"]) == (404, "team_not_found")


async def test_a_team_is_read_and_renamed_by_slug_or_id(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    main = await http.get("/v1/teams/main", headers=headers)
    renamed = await http.patch(
        f"/v1/teams/{main.json()['id']}",
        json={"name": "Everybody"},
        headers={**headers, "If-Match": main.headers["ETag"]},
    )
    assert (renamed.status_code, renamed.json()["name"]) == (200, "Everybody")
    late = await http.patch(
        "/v1/teams/main", json={"name": "No"}, headers={**headers, "If-Match": main.headers["ETag"]}
    )
    assert (late.status_code, late.json()["code"]) == (412, "stale")
    assert (await http.get("/v1/teams/main", headers=headers)).json()["name"] == "Everybody"


async def test_a_team_in_use_is_kept_and_the_answer_counts_its_users(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    child = {"slug": "infra", "name": "Infra", "parent": "main"}
    await http.post("/v1/teams", json=child, headers=headers)
    refused = await http.delete("/v1/teams/main", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert refused.json()["used_by"] == {"agents": 1, "teams": 1}
    member = await http.post("/v1/members", json={"display_name": "Mel", "teams": ["infra"]}, headers=headers)
    assert (await http.delete("/v1/teams/infra", headers=headers)).status_code == 204
    gone = await http.delete("/v1/teams/infra", headers=headers)
    assert (gone.status_code, gone.json()["code"]) == (404, "team_not_found")
    left = await http.get(f"/v1/members/{member.json()['id']}", headers=headers)
    assert left.json()["team_ids"] == []
