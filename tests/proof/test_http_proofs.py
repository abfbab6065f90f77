from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cortex_plane.client import Client
from cortex_plane.proof.rules.receipts import as_file, check_file
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.approvals import Shipping, decide, waiting
from tests.fixtures.people import Person, World


async def _get(http: httpx.AsyncClient, who: Person, path: str, status: int = 200) -> Any:
    answer = await http.get(path, headers=who.headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def client(http: httpx.AsyncClient, who: Person) -> Client:
    return Client("http://plane", who.secret, transport=http._transport)


@pytest.mark.proves("D.171", "D.178")
async def test_a_receipt_is_fetched_and_verifies_with_the_listed_key(http: httpx.AsyncClient, strict: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    path = f"/v1/approvals/{asked.id}/receipt"
    assert (await _get(http, strict.admin, path, 404))["code"] == "receipt_not_found"
    await decide(strict, asked)
    found = await _get(http, strict.admin, path)
    (key,) = (await _get(http, strict.admin, "/v1/audit/keys"))["items"]
    raw = base64.b64decode(key["public_key"])
    assert key["fingerprint"] == hashlib.sha256(raw).hexdigest() == found["fingerprint"]
    # With nothing of ours: raises where the signature is false.
    Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(found["signature"]), found["body"].encode())
    assert json.loads(found["body"])["approval"] == str(asked.id)
    stranger = await strict.person(Role.MEMBER, name="Mo")
    assert (await _get(http, stranger, path, 404))["code"] == "approval_not_found"
    receipt = await client(http, strict.admin).approvals.receipt(asked.id)
    assert check_file(as_file(receipt), key["fingerprint"]).fault is None


@pytest.mark.proves("D.178")
async def test_roots_are_made_listed_and_paged(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    assert (await _get(http, world.admin, "/v1/audit/roots"))["items"] == []
    for n in range(3):
        await world.say(f"{n}")
        made = (await http.post("/v1/audit/roots", headers=headers)).json()
        assert (made["made"], made["root"]["seq"]) == (True, n + 1)
    assert (await http.post("/v1/audit/roots", headers=headers)).json()["made"] is False
    page = await _get(http, world.admin, "/v1/audit/roots?limit=2")
    assert [root["seq"] for root in page["items"]] == [3, 2]
    page = await _get(http, world.admin, f"/v1/audit/roots?limit=2&cursor={page['next_cursor']}")
    assert ([root["seq"] for root in page["items"]], page["next_cursor"]) == ([1], None)
    verified = await _get(http, world.admin, "/v1/audit/verification")
    assert (verified["roots"], verified["root_faults"], verified["faults"]) == (3, [], [])
    member = await world.person(Role.MEMBER, name="Mo")
    for method, path in (("GET", "/v1/audit/roots"), ("POST", "/v1/audit/roots"), ("GET", "/v1/audit/keys")):
        assert (await http.request(method, path, headers=member.headers)).status_code == 403
    assert (await http.get("/v1/audit/roots?cursor=zz", headers=headers)).status_code == 422


@pytest.mark.proves("D.178")
async def test_the_client_rotates_a_key(http: httpx.AsyncClient, world: World) -> None:
    operator = await world.person(Role.OPERATOR, name="Op")
    plane = client(http, world.admin)
    first = (await plane.audit.make_root()).root
    new = await plane.audit.rotate_key()
    keys = await plane.audit.keys()
    assert [key.fingerprint for key in keys] == [first.fingerprint, new.fingerprint]
    assert (await http.post("/v1/audit/keys", headers=operator.headers)).status_code == 403
    assert (await plane.audit.make_root()).root.fingerprint == new.fingerprint
    assert [root.seq async for root in plane.audit.roots()] == [2, 1]
    assert (await plane.audit.verify()).fingerprints == [first.fingerprint, new.fingerprint]
