"""Verifies an export of `cortex audit export` without the plane: Python's standard library and nothing else.

    python verify_export.py audit.ndjson [--find approval_decision] [--key FINGERPRINT] [--roots FILE]   (- reads standard input)

Prints the first bad entry of each chain, the first bad root, whose signatures it saw, and what it counted. Name with --key
the keys that you trust (after a rotation each of them): without it, compare what is printed with what you wrote down. Exit
code 0: whole. 1: something was changed. 2: this is not an export, or it was cut off. Reads line by line: an export of any
size is verified in little memory.
"""

import argparse
import base64
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, BinaryIO

FIELDS = {
    "header": "type format version org session exported_at rule",
    "entry": "type chain session seq format action job at_us created_at body body_hash hash",
    "rooted": "type chain root seq hash",
    "head": "type chain seq hash",
    "key": "type id public_key fingerprint created_at retired_at",
    "root": "type seq body hash key signature",
    "trailer": "type chains entries sha256",
}
ENTRY_OF_VERSION_1 = "type chain session seq action at_us created_at body body_hash hash"
ERASED = "audit_erased"
PLACES = {"header": 0, "entry": 1, "rooted": 1, "head": 1, "key": 2, "root": 3, "trailer": 4}
LONGEST_LINE = 256 * 1024 * 1024
MALFORMED = (TypeError, ValueError, KeyError, OverflowError, AttributeError, RecursionError)


class NotAnExport(Exception):
    """What was read is no export, or not all of one."""


def read(line: bytes, number: int, version: int) -> dict[str, Any]:
    """The object of a line, which must be spelled exactly as the plane spells it: one meaning, one spelling."""
    try:
        found = json.loads(line)
        again = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        old = version == 1 and found["type"] == "entry"
        if again == line and " ".join(found) == (ENTRY_OF_VERSION_1 if old else FIELDS[found["type"]]):
            return {"format": 1, "job": None, **found} if old else dict(found)
    except MALFORMED:
        pass
    raise NotAnExport(f"line {number} is not a line of an export")


class Chain:
    """Follows one chain, entry by entry, up to the first that is wrong."""

    def __init__(self, id: str, org: str, fault: str | None) -> None:
        self.id, self.org, self.fault = id, org, fault
        self.name = ascii(id)[1:-1]
        self.seq, self.hash, self.format = 0, bytes(32), 1
        self.blanked, self.unexplained = 0, dict[int, str]()

    def follow(self, entry: dict[str, Any]) -> None:
        try:
            self.fault = self.fault or self.wrong(entry)
        except MALFORMED:
            self.fault = f"entry {self.seq + 1}: it is malformed"
        if self.fault is None:
            self.seq, self.hash, self.format = entry["seq"], bytes.fromhex(entry["hash"]), entry["format"]

    def wrong(self, entry: dict[str, Any]) -> str | None:
        seq, at, body = entry["seq"], entry["at_us"], entry["body"]
        body_hash = bytes.fromhex(entry["body_hash"])
        if type(seq) is not int or type(at) is not int or body_hash.hex() != entry["body_hash"]:
            raise ValueError
        if type(entry["format"]) is not int or entry["format"] not in (1, 2):
            return f"entry {self.seq + 1}: this script does not know its format, {entry['format']!a}"
        if seq != self.seq + 1:
            return f"entry {self.seq + 1}: it is missing; the next one is {seq}"
        if body is not None and hashlib.sha256(body.encode()).digest() != body_hash:
            return f"entry {seq}: its body was changed"
        if entry["format"] < self.format:
            return f"entry {seq}: it has format {entry['format']}, after one with format {self.format}"
        if chained(self.hash, entry, body_hash) != entry["hash"]:
            begins = '{"action":' + json.dumps(entry["action"], ensure_ascii=False)
            renamed = entry["format"] > 1 and body is not None and not body.startswith(begins)
            return f"entry {seq}: its {'action differs from its body' if renamed else 'hash does not follow from the one before'}"
        if body is not None and json.loads(body)["action"] != entry["action"]:
            return f"entry {seq}: its action differs from its body"
        if body is None:
            self.blanked += 1
            self.unexplained[seq] = entry["action"]
        elif entry["action"] == ERASED:
            # The hash of format 1 does not cover the action: there, what the erase entry says of it counts.
            for erased in json.loads(body)["data"]["entries"]:
                if self.unexplained.pop(erased["seq"], erased["action"]) != erased["action"]:
                    return f"entry {erased['seq']}: its action differs from what erase entry {seq} says of it"
        moment = datetime(1970, 1, 1) + timedelta(microseconds=at)
        if entry["created_at"] != moment.isoformat(timespec="microseconds") + "Z":
            return f"entry {seq}: its two times differ"
        return None if self.id == (entry["session"] or self.org) else f"entry {seq}: it is of another chain"

    def rooted(self, head: dict[str, Any]) -> None:
        """What a root says of the entry that was just read."""
        if head["seq"] != self.seq:
            self.fault = self.fault or f"entry {head['seq']!a}: it is missing, and root {head['root']!a} covers it"
        elif head["hash"] != self.hash.hex():
            self.fault = self.fault or f"entry {self.seq}: root {head['root']!a} holds another hash of it"

    def finish(self, head: dict[str, Any]) -> None:
        if head["seq"] is None:
            self.fault = self.fault or "its head is gone"
        elif head["seq"] != self.seq:
            self.fault = self.fault or f"entry {self.seq + 1}: the head says that there are {head['seq']!a}"
        elif head["hash"] != self.hash.hex():
            self.fault = self.fault or f"entry {self.seq}: the head holds another hash"
        elif self.unexplained:
            first, *others = self.unexplained
            more = f" (nor {len(others)} more)" if others else ""
            self.fault = self.fault or f"entry {first}: its body is gone, and no erase entry names it{more}"


def chained(previous: bytes, entry: dict[str, Any], body_hash: bytes) -> str:
    """What the hash of an entry must be. Format 1, of earlier releases, leaves the action and the job out."""
    numbers = entry["seq"].to_bytes(8, "big") + entry["at_us"].to_bytes(8, "big", signed=True)
    if entry["format"] == 1:
        return hashlib.sha256(previous + numbers + body_hash).hexdigest()
    job = uuid.UUID(entry["job"]).bytes if entry["job"] is not None else bytes(16)
    said = hashlib.sha256(entry["action"].encode()).digest() + job
    return hashlib.sha256(previous + b"\x02" + numbers + said + body_hash).hexdigest()


class Roots:
    """Compares each root with the heads that it covers: one digest is kept for each, and no head."""

    def __init__(self) -> None:
        self.covered: dict[int, list[Any]] = {}
        self.keys: dict[str, bytes] = {}
        self.used: dict[str, None] = {}
        self.seq, self.hash, self.total, self.chain = 0, bytes(32), 0, ""
        self.fault: str | None = None
        self.held: dict[int, str] = {}
        self.replaced = self.newer = 0

    def saw(self, head: dict[str, Any]) -> None:
        """A head of a root: chain by chain, in the order of their ids."""
        chain, digest = bytes.fromhex(head["chain"].replace("-", "")), bytes.fromhex(head["hash"])
        if type(head["root"]) is not int or len(chain) != 16 or len(digest) != 32 or digest.hex() != head["hash"]:
            raise ValueError
        covered = self.covered.setdefault(head["root"], [hashlib.sha256(), 0, 0])
        covered[0].update(chain + head["seq"].to_bytes(8, "big") + digest)
        covered[1] += 1
        covered[2] += head["chain"] != self.chain
        self.chain = head["chain"]

    def know(self, key: dict[str, Any]) -> None:
        raw = base64.b64decode(key["public_key"], validate=True)
        if len(raw) != 32 or hashlib.sha256(raw).hexdigest() != key["fingerprint"]:
            raise ValueError
        self.keys[key["id"]] = raw

    def hold(self, lines: Iterable[str], org: str, exported_at: str) -> None:
        """Copies of roots that somebody kept elsewhere, but those that were made after the export."""
        copies = [copy for copy in map(json.loads, lines) if copy["org"] == org]
        self.held = {copy["seq"]: copy["hash"] for copy in copies if copy["created_at"] <= exported_at}
        self.newer = len({copy["seq"] for copy in copies}) - len(self.held)

    def follow(self, root: dict[str, Any], org: str) -> None:
        if self.held.pop(root["seq"], root["hash"]) != root["hash"]:
            self.replaced = self.replaced or root["seq"]
        if self.fault is None:
            reason = self.wrong(root, root["body"].encode(), org)
            self.fault = f"root {self.seq + 1}: {reason}" if reason else None
            self.seq, self.hash = root["seq"], bytes.fromhex(root["hash"])

    def wrong(self, root: dict[str, Any], body: bytes, org: str) -> str | None:
        if root["seq"] != self.seq + 1:
            return f"it is missing; the next one is {root['seq']!a}"
        if hashlib.sha256(self.hash + body).hexdigest() != root["hash"]:
            return "its hash does not follow from its body and the one before"
        if root["key"] not in self.keys:
            return "the key that signed it is not in the export"
        key = self.keys[root["key"]]
        if not is_signed(key, bytes.fromhex(root["signature"]), body):
            return "its signature is false"
        self.used[hashlib.sha256(key).hexdigest()] = None
        told = json.loads(body)
        place = (told["format"], told["version"], told["org"], told["seq"], told["previous"])
        if place != ("cortex-root", 1, org, root["seq"], self.hash.hex()):
            return "what was signed is not this root"
        digest, count, new = self.covered.pop(root["seq"], (hashlib.sha256(), 0, 0))
        self.total += new
        if told["heads"]["count"] != count:
            return f"it covers {told['heads']['count']!a} chains, and {count} of them are here"
        if told["heads"]["sha256"] != digest.hexdigest():
            return "the heads that it covers are not those that are here"
        return None if told["chains"] == self.total else f"it says that there are {told['chains']!a} chains"

    def faults(self, trusted: Sequence[str]) -> list[str]:
        found = [self.fault] if self.fault else []
        if self.covered and not self.fault:
            found.append(f"root {min(self.covered)}: it is missing, and heads that it covers are here")
        if self.replaced:
            found.append(f"root {self.replaced}: the copy that you hold has another hash")
        if self.held:
            found.append(f"root {min(self.held)}: you hold a copy of it, and it is missing")
        if trusted:
            found += [f"signed with {used}, which you did not name" for used in self.used if used not in trusted]
            found += [] if self.used else ["no root is signed with a key that you named"]
        return found


# Ed25519 as RFC 8032 has it: a point is (x, y, z, t) with x/z, y/z on the curve and x*y = z*t.
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int, int, int]


def add(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number: int, point: Point) -> Point:
    total = (0, 1, 1, 0)
    while number:
        if number & 1:
            total = add(total, point)
        point, number = add(point, point), number >> 1
    return total


def on_curve(raw: bytes) -> Point:
    number = int.from_bytes(raw, "little")
    y, sign = number & ((1 << 255) - 1), number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != square or (x == 0 and sign):
        raise ValueError("this is no point of the curve")
    x = P - x if x & 1 != sign else x
    return x, y, 1, x * y % P


def is_signed(key: bytes, signature: bytes, body: bytes) -> bool:
    (x, y, _, t), s = on_curve(key), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or s >= ORDER:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + body).digest(), "little") % ORDER
    base = on_curve((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    x, y, z, _ = add(times(s, base), times(k, (P - x, y, 1, P - t)))
    z = pow(z, P - 2, P)
    return (y * z % P | (x * z % P & 1) << 255).to_bytes(32, "little") == signature[:32]


def verify(file: BinaryIO, find: str | None, trusted: Sequence[str] = (), copies: Iterable[str] = ()) -> bool:
    """Whether all of it is whole; says what is not."""
    digest, org, session, last, chain, roots = hashlib.sha256(), "", None, "", None, Roots()
    number = chains = entries = signed = bad = named = place = blanked = 0
    version = 2
    while line := file.readline(LONGEST_LINE):
        number += 1
        found = read(line, number, version)
        kind = found["type"]
        if (kind == "header") != (number == 1) or PLACES[kind] < place:
            raise NotAnExport(f"line {number} is not where it belongs")
        place = PLACES[kind]
        if kind == "header":
            version = found["version"]
            if found["format"] != "cortex-audit-export" or version not in (1, 2):
                raise NotAnExport("this script knows versions 1 and 2 of cortex-audit-export")
            org, session = found["org"]["id"], found["session"]
            roots.hold(copies, org, found["exported_at"])
        if chain and chain.id != found.get("chain"):
            print(f"chain {chain.name}: {chain.fault or 'its head is not in the export'}")
            chain, bad = None, bad + 1
        if kind in ("entry", "rooted", "head"):
            misplaced = None if chain or found["chain"] > last else "it stands in the wrong place"
            chain = chain or Chain(found["chain"], org, misplaced)
            last = chain.id
            if kind == "entry":
                entries += 1
                chain.follow(found)
                if find == found["action"] and chain.fault is None:
                    print(json.dumps({name: found[name] for name in ("chain", "seq", "created_at", "body")}))
            elif kind == "rooted":
                roots.saw(found)
                chain.rooted(found)
            else:
                chains, named = chains + 1, named + (chain.id == (session or org))
                chain.finish(found)
                blanked += chain.blanked
                if chain.fault:
                    print(f"chain {chain.name}: {chain.fault}")
                    bad += 1
                chain = None
        if kind == "key":
            roots.know(found)
        if kind == "root":
            signed += 1
            roots.follow(found, org)
        if kind == "trailer":
            if (found["chains"], found["entries"], found["sha256"]) != (chains, entries, digest.hexdigest()):
                print("the trailer does not fit what stands before it")
                bad += 1
            if named != 1 or (session is not None and chains != 1):
                print("these are not the chains that its header names")
                bad += 1
            if file.read(1):
                raise NotAnExport("something follows the trailer")
            for fault in roots.faults(trusted):
                print(fault)
                bad += 1
            if roots.newer:
                print(f"{roots.newer} copies of roots are newer than the export and were not compared")
            for used in roots.used:
                print(f"signed with {used}")
            counted = f"{chains} chains, {entries} entries" + (f", {signed} roots" if signed else "")
            counted += f", {blanked} erased bodies" if blanked else ""
            print(f"{counted}: {'NOT whole' if bad else 'whole'}")
            return not bad
        digest.update(line)
    raise NotAnExport("it was cut off: its trailer is missing")


def main() -> int:
    parser = argparse.ArgumentParser(description="Verify an audit export without the plane that made it.")
    parser.add_argument("file", help="the export; - for standard input")
    parser.add_argument("--find", metavar="ACTION", help="also print the verified entries of this action")
    parser.add_argument("--key", metavar="FINGERPRINT", action="append", default=[], help="a key that you trust")
    parser.add_argument("--roots", metavar="FILE", help="copies of roots that were kept elsewhere")
    asked = parser.parse_args()
    try:
        with open(asked.roots or os.devnull) as file:  # noqa: PTH123
            copies = file.readlines()
        with sys.stdin.buffer if asked.file == "-" else open(asked.file, "rb") as file:  # noqa: PTH123
            return 0 if verify(file, asked.find, asked.key, copies) else 1
    except (NotAnExport, OSError, *MALFORMED) as error:
        print(f"{asked.file}: {error or 'it is not an export'}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
