"""Signed roots in an export: whatever was taken away, changed or moved is found, by the plane and by the script alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.kernel.canonical import canonical
from cortex_plane.proof.model import Fault, RootFault, chain_hash, moment
from tests.fixtures.exports import lines, sealed, verdict
from tests.fixtures.proofs import ADA, MALLORY, ORG, SESSIONS, by_the_plane, by_the_script, rooted_export, signed_roots

EXPORT = rooted_export()
Lines = list[dict[str, Any]]


@pytest.mark.proves("D.175")
def test_a_rooted_export_is_whole_for_both() -> None:
    found = by_the_plane(EXPORT)
    assert found is not None
    assert (found.chains, found.entries, found.roots) == (4, 16, 3)
    assert (found.faults, found.root_faults, found.fingerprints) == ([], [], [ADA.fingerprint])
    alone = verdict(EXPORT, "--key", ADA.fingerprint)
    told = [f"signed with {ADA.fingerprint}", "4 chains, 16 entries, 3 roots, 4 erased bodies: whole"]
    assert (alone.code, alone.said.splitlines(), alone.complained) == (0, told, "")


def _roots(found: Lines) -> Lines:
    return [line for line in found if line["type"] == "root"]


def _rooted(found: Lines, root: int, chain: UUID) -> dict[str, Any]:
    (line,) = [
        each for each in found if each["type"] == "rooted" and (each["root"], each["chain"]) == (root, str(chain))
    ]
    return line


def _without_chain(found: Lines, chain: UUID, *, with_roots: bool) -> None:
    kinds = ("entry", "head", "rooted") if with_roots else ("entry", "head")
    found[:] = [line for line in found if line.get("chain") != str(chain) or line["type"] not in kinds]


def _cut(found: Lines, chain: UUID, to: int) -> None:
    """The end of a chain gone, its head put back: a chain that is whole by itself."""
    kept = [line for line in found if line["type"] == "entry" and line["chain"] == str(chain)]
    found[:] = [
        line for line in found if not (line["type"] == "entry" and line["chain"] == str(chain) and line["seq"] > to)
    ]
    for line in found:
        if line["type"] == "head" and line["chain"] == str(chain):
            line.update(seq=to, hash=kept[to - 1]["hash"])


def _rewrite(found: Lines, chain: UUID) -> None:
    """A chain that somebody wrote anew from its first entry to its head."""
    previous = bytes(32)
    for line in found:
        if line.get("chain") != str(chain):
            continue
        if line["type"] == "entry":
            line["body"] = canonical({"action": line["action"], "data": "forged"}).decode()
            line["body_hash"] = hashlib.sha256(line["body"].encode()).hexdigest()
            job = UUID(line["job"]) if line["job"] else None
            body_hash = bytes.fromhex(line["body_hash"])
            previous = chain_hash(previous, line["seq"], moment(line["at_us"]), line["action"], job, body_hash)
        if line["type"] in ("entry", "head"):
            line["hash"] = previous.hex()


def _rewrite_and_cover(found: Lines) -> None:
    _rewrite(found, SESSIONS[0])
    _rooted(found, 1, SESSIONS[0])["hash"] = "00" * 32


def _swap(found: Lines) -> None:
    one, two = (found.index(root) for root in _roots(found)[:2])
    found[one], found[two] = found[two], found[one]


def _body(found: Lines, n: int, **changes: Any) -> dict[str, Any]:
    root = _roots(found)[n]
    root["body"] = canonical({**json.loads(root["body"]), **changes}).decode()
    return root


def _rehashed(found: Lines) -> None:
    """As somebody would leave it who knows how hashes are made, and cannot sign."""
    root = _body(found, 0, chains=3)
    root["hash"] = hashlib.sha256(bytes(32) + root["body"].encode()).hexdigest()


FIRST, SECOND, THIRD = SESSIONS
FORGERIES: dict[str, tuple[Callable[[Lines], object], list[Fault], list[RootFault]]] = {
    "a chain that is missing, with every trace of it": (
        lambda f: _without_chain(f, THIRD, with_roots=True),
        [],
        [RootFault(root=2, reason="it covers 3 chains, and 2 of them are here")],
    ),
    "a chain that is missing": (
        lambda f: _without_chain(f, THIRD, with_roots=False),
        [Fault(chain_id=THIRD, seq=4, reason="it is missing, and root 2 covers it")],
        [],
    ),
    "a chain that was cut with its head": (
        lambda f: _cut(f, FIRST, 2),
        [Fault(chain_id=FIRST, seq=3, reason="it is missing, and root 2 covers it")],
        [],
    ),
    "a chain that was written anew": (
        lambda f: _rewrite(f, SECOND),
        [Fault(chain_id=SECOND, seq=2, reason="root 2 holds another hash of it")],
        [],
    ),
    "a chain and its covered head written anew": (
        _rewrite_and_cover,
        [Fault(chain_id=FIRST, seq=1, reason="root 1 holds another hash of it")],
        [RootFault(root=1, reason="the heads that it covers are not those that are here")],
    ),
    "a covered head that is missing": (
        lambda f: f.remove(_rooted(f, 1, FIRST)),
        [],
        [RootFault(root=1, reason="it covers 2 chains, and 1 of them are here")],
    ),
    "the first root missing": (
        lambda f: f.remove(_roots(f)[0]),
        [],
        [RootFault(root=1, reason="it is missing; the next one is 2")],
    ),
    "the last root missing": (
        lambda f: f.remove(_roots(f)[2]),
        [],
        [RootFault(root=3, reason="it is missing, and heads that it covers are here")],
    ),
    "roots in another order": (_swap, [], [RootFault(root=1, reason="it is missing; the next one is 2")]),
    "a root's body": (
        lambda f: _body(f, 1, chains=7),
        [],
        [RootFault(root=2, reason="its hash does not follow from its body and the one before")],
    ),
    "a root's body and hash": (_rehashed, [], [RootFault(root=1, reason="its signature is false")]),
    "a root's hash": (
        lambda f: _roots(f)[0].update(hash="00" * 32),
        [],
        [RootFault(root=1, reason="its hash does not follow from its body and the one before")],
    ),
    "a root's signature": (
        lambda f: _roots(f)[1].update(signature=_roots(f)[0]["signature"]),
        [],
        [RootFault(root=2, reason="its signature is false")],
    ),
}


@pytest.mark.proves("D.175", "D.176")
@pytest.mark.parametrize("name", FORGERIES)
def test_what_was_changed_is_named_first(name: str) -> None:
    """Under a trailer that fits, as somebody would leave it who knows the format."""
    change, faults, root_faults = FORGERIES[name]
    found = lines(EXPORT)
    change(found)
    forged = sealed(_reheaded(found))
    verified = by_the_plane(forged)
    assert verified is not None
    assert (verified.faults, verified.root_faults) == (faults, root_faults)
    code, said = by_the_script(forged)
    expected = [f"chain {each.chain_id}: entry {each.seq}: {each.reason}" for each in faults]
    expected += [f"root {each.root}: {each.reason}" for each in root_faults]
    assert (code, [line for line in said if not line.startswith("signed with")][:-1]) == (1, expected)


def _reheaded(found: Lines) -> Lines:
    """A chain of which only covered heads are left still ends with a head, as the plane exports it."""
    heads = {line["chain"] for line in found if line["type"] == "head"}
    made: Lines = []
    for n, line in enumerate(found):
        made.append(line)
        last = n + 1 == len(found) or found[n + 1].get("chain") != line.get("chain")
        if line["type"] == "rooted" and last and line["chain"] not in heads:
            made.append({"type": "head", "chain": line["chain"], "seq": None, "hash": None})
    return made


@pytest.mark.proves("D.176")
def test_roots_that_somebody_else_signed_are_found_where_the_right_key_is_named() -> None:
    forged = rooted_export(MALLORY)
    verified = by_the_plane(forged)
    assert verified is not None
    assert (verified.root_faults, verified.fingerprints) == ([], [MALLORY.fingerprint])
    code, said = by_the_script(forged, ADA.fingerprint)
    assert code == 1
    assert f"signed with {MALLORY.fingerprint}, which you did not name" in said
    assert by_the_script(forged, ADA.fingerprint, MALLORY.fingerprint)[0] == 0
    unsigned = sealed([line for line in lines(EXPORT) if line["type"] not in ("root", "rooted", "key")])
    assert by_the_script(unsigned)[0] == 0
    assert by_the_script(unsigned, ADA.fingerprint)[0] == 1, "no root vouches for it"


def test_a_root_of_another_org_is_not_this_orgs() -> None:
    body = json.loads(next(iter(signed_roots(ADA))).body) | {"org": str(UUID(int=6))}
    forged = canonical(body)
    found = lines(EXPORT)
    _roots(found)[0].update(
        body=forged.decode(), hash=hashlib.sha256(bytes(32) + forged).hexdigest(),
        signature=ADA.private.sign(forged).hex(),
    )  # fmt: skip
    verified = by_the_plane(sealed(found))
    assert verified is not None
    assert verified.root_faults == [RootFault(root=1, reason="what was signed is not this root")]
    assert "root 1: what was signed is not this root" in by_the_script(sealed(found))[1]


STRANGE: dict[str, Callable[[Lines], object]] = {
    "a key of another length": lambda f: _key(f).update(public_key="AAAA"),
    "a fingerprint of another key": lambda f: _key(f).update(fingerprint=MALLORY.fingerprint),
    "a covered head without hexadecimal": lambda f: _rooted(f, 1, ORG).update(hash="zz" * 32),
    "a root that is text": lambda f: _rooted(f, 1, ORG).update(root="1"),
    "a body that is none": lambda f: _roots(f)[0].update(body=None),
    "a root before the chains": lambda f: f.insert(1, f.pop(f.index(_roots(f)[0]))),
}


def _key(found: Lines) -> dict[str, Any]:
    (line,) = [each for each in found if each["type"] == "key"]
    return line


@pytest.mark.parametrize("name", STRANGE)
def test_what_cannot_be_a_line_of_an_export_is_refused(name: str) -> None:
    found = lines(EXPORT)
    STRANGE[name](found)
    assert by_the_plane(sealed(found)) is None
    assert by_the_script(sealed(found))[0] == 2
