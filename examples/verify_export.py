"""Verifies an export of `cortex audit export` without the plane: Python's standard library and nothing else.

    python verify_export.py audit.ndjson [--find approval_decision]       (- reads standard input)

Prints the first bad entry of each chain and what it counted. Exit code 0: whole. 1: something was changed. 2: this is
not an export, or it was cut off. Reads line by line: an export of any size is verified in little memory.
"""

import argparse
import hashlib
import json
import sys
from datetime import datetime, timedelta
from typing import Any, BinaryIO

FIELDS = {
    "header": "type format version org session exported_at rule",
    "entry": "type chain session seq action at_us created_at body body_hash hash",
    "head": "type chain seq hash",
    "trailer": "type chains entries sha256",
}
LONGEST_LINE = 256 * 1024 * 1024
MALFORMED = (TypeError, ValueError, KeyError, OverflowError, AttributeError, RecursionError)


class NotAnExport(Exception):
    """What was read is no export, or not all of one."""


def read(line: bytes, number: int) -> dict[str, Any]:
    """The object of a line, which must be spelled exactly as the plane spells it: one meaning, one spelling."""
    try:
        found = json.loads(line)
        again = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if again == line and " ".join(found) == FIELDS[found["type"]]:
            return dict(found)
    except MALFORMED:
        pass
    raise NotAnExport(f"line {number} is not a line of an export")


class Chain:
    """Follows one chain, entry by entry, up to the first that is wrong."""

    def __init__(self, id: str, org: str, fault: str | None) -> None:
        self.id, self.org, self.fault = id, org, fault
        self.name = ascii(id)[1:-1]
        self.seq, self.hash = 0, bytes(32)

    def follow(self, entry: dict[str, Any]) -> None:
        try:
            self.fault = self.fault or self.wrong(entry)
        except MALFORMED:
            self.fault = f"entry {self.seq + 1}: it is malformed"
        if self.fault is None:
            self.seq, self.hash = entry["seq"], bytes.fromhex(entry["hash"])

    def wrong(self, entry: dict[str, Any]) -> str | None:
        seq, at, body = entry["seq"], entry["at_us"], entry["body"]
        body_hash = bytes.fromhex(entry["body_hash"])
        if type(seq) is not int or type(at) is not int or body_hash.hex() != entry["body_hash"]:
            raise ValueError
        if seq != self.seq + 1:
            return f"entry {self.seq + 1}: it is missing; the next one is {seq}"
        if body is not None and hashlib.sha256(body.encode()).digest() != body_hash:
            return f"entry {seq}: its body was changed"
        numbers = seq.to_bytes(8, "big") + at.to_bytes(8, "big", signed=True)
        if hashlib.sha256(self.hash + numbers + body_hash).hexdigest() != entry["hash"]:
            return f"entry {seq}: its hash does not follow from the one before"
        if body is not None and json.loads(body)["action"] != entry["action"]:
            return f"entry {seq}: its action differs from its body"
        moment = datetime(1970, 1, 1) + timedelta(microseconds=at)
        if entry["created_at"] != moment.isoformat(timespec="microseconds") + "Z":
            return f"entry {seq}: its two times differ"
        return None if self.id == (entry["session"] or self.org) else f"entry {seq}: it is of another chain"

    def finish(self, head: dict[str, Any]) -> None:
        if head["seq"] is None:
            self.fault = self.fault or "its head is gone"
        elif head["seq"] != self.seq:
            self.fault = self.fault or f"entry {self.seq + 1}: the head says that there are {head['seq']!a}"
        elif head["hash"] != self.hash.hex():
            self.fault = self.fault or f"entry {self.seq}: the head holds another hash"


def verify(file: BinaryIO, find: str | None) -> bool:
    """Whether all of it is whole; says what is not."""
    digest, org, session, last, chain = hashlib.sha256(), "", None, "", None
    number = chains = entries = bad = named = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        found = read(line, number)
        kind = found["type"]
        if (kind == "header") != (number == 1):
            raise NotAnExport(f"line {number} is not where it belongs")
        if kind == "header":
            if (found["format"], found["version"]) != ("cortex-audit-export", 1):
                raise NotAnExport("this script knows version 1 of cortex-audit-export")
            org, session = found["org"]["id"], found["session"]
        if chain and chain.id != found.get("chain"):
            print(f"chain {chain.name}: {chain.fault or 'its head is not in the export'}")
            chain, bad = None, bad + 1
        if kind in ("entry", "head"):
            misplaced = None if chain or found["chain"] > last else "it stands in the wrong place"
            chain = chain or Chain(found["chain"], org, misplaced)
            last = chain.id
            if kind == "entry":
                entries += 1
                chain.follow(found)
                if find == found["action"] and chain.fault is None:
                    print(json.dumps({name: found[name] for name in ("chain", "seq", "created_at", "body")}))
            else:
                chains, named = chains + 1, named + (chain.id == (session or org))
                chain.finish(found)
                if chain.fault:
                    print(f"chain {chain.name}: {chain.fault}")
                    bad += 1
                chain = None
        if kind == "trailer":
            if (found["chains"], found["entries"], found["sha256"]) != (chains, entries, digest.hexdigest()):
                print("the trailer does not fit what stands before it")
                bad += 1
            if named != 1 or (session is not None and chains != 1):
                print("these are not the chains that its header names")
                bad += 1
            if file.read(1):
                raise NotAnExport("something follows the trailer")
            print(f"{chains} chains, {entries} entries: {'NOT whole' if bad else 'whole'}")
            return not bad
        digest.update(line)
    raise NotAnExport("it was cut off: its trailer is missing")


def main() -> int:
    parser = argparse.ArgumentParser(description="Verify an audit export without the plane that made it.")
    parser.add_argument("file", help="the export; - for standard input")
    parser.add_argument("--find", metavar="ACTION", help="also print the verified entries of this action")
    asked = parser.parse_args()
    try:
        with sys.stdin.buffer if asked.file == "-" else open(asked.file, "rb") as file:  # noqa: PTH123
            return 0 if verify(file, asked.find) else 1
    except (NotAnExport, OSError, *MALFORMED) as error:
        print(f"{asked.file}: {error or 'it is not an export'}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
