"""The script that verifies an export: independent of the plane, and nothing that was changed gets past it."""

from __future__ import annotations

import ast
import hashlib
import io
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from cortex_plane.kernel.canonical import canonical
from cortex_plane.proof.model import ERASED as ERASES
from cortex_plane.proof.model import GENESIS, AuditEntry, ChainHead, chain_hash, chain_hash_1
from cortex_plane.proof.rules.exports import ExportWriter
from tests.fixtures.exports import SCRIPT, lines, sealed, spelled, verdict
from tests.fixtures.proofs import by_the_plane
from tests.fixtures.properties import holds_for

ORG = UUID(int=5)
SESSIONS = [UUID(int=7), UUID(int=8)]
ERASED = 3
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def trail(*, entries: int = 4, of_format: int = 2) -> bytes:
    """Three chains; the third entry of each was erased under the fourth, the last one says a thing in many alphabets."""
    writer = ExportWriter()
    export = writer.header(ORG, "acme", None, START)
    for chain in (ORG, *SESSIONS):
        previous = GENESIS
        for seq in range(1, entries + 1):
            action = {2: "approval_decision", 4: ERASES}.get(seq, f"act_{seq}")
            job = UUID(int=31) if seq == 2 else None
            data = {"entries": [{"seq": ERASED, "action": f"act_{ERASED}"}]} if seq == 4 else {}
            body = canonical({"action": action, "data": data | {"n": seq, "said": "é 日本 \u202e \x07 </script>"}})
            at = START + timedelta(microseconds=seq)
            body_hash = hashlib.sha256(body).digest()
            if of_format == 1:
                previous = chain_hash_1(previous, seq, at, body_hash)
            else:
                previous = chain_hash(previous, seq, at, action, job, body_hash)
            export += writer.entry(
                AuditEntry(
                    chain_id=chain, session_id=None if chain == ORG else chain, seq=seq,
                    format=of_format, action=action, job_id=job, body=None if seq == ERASED else body, body_hash=body_hash, hash=previous, created_at=at,
                )
            )  # fmt: skip
        export += writer.head(ChainHead(chain_id=chain, seq=entries, hash=previous))
    return export + writer.trailer()


EXPORT = trail()
CHAIN = str(SESSIONS[0])
FOREIGN_IMPORTS = {
    "argparse",
    "base64",
    "collections.abc",
    "hashlib",
    "json",
    "os",
    "sys",
    "datetime",
    "typing",
    "uuid",
}


@pytest.mark.proves("D.82")
def test_the_script_needs_nothing_but_python() -> None:
    tree = ast.parse(SCRIPT.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == FOREIGN_IMPORTS
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    assert len(SCRIPT.read_text().splitlines()) <= 360


@pytest.mark.proves("D.82")
def test_a_good_export_is_whole() -> None:
    found = verdict(EXPORT)
    assert (found.code, found.said, found.complained) == (0, "3 chains, 12 entries, 3 erased bodies: whole\n", "")
    assert verdict(trail(entries=0)).said == "3 chains, 0 entries: whole\n"


@pytest.mark.proves("D.82")
def test_decisions_are_found_in_it() -> None:
    *entries, counted = verdict(EXPORT, "--find", "approval_decision").said.splitlines()
    found = lines("\n".join(entries).encode())
    assert [(line["chain"], line["seq"]) for line in found] == [(str(id), 2) for id in (ORG, *SESSIONS)]
    assert all("approval_decision" in line["body"] for line in found)
    assert counted.endswith("whole")
    assert verdict(EXPORT, "--find", "nothing").said == "3 chains, 12 entries, 3 erased bodies: whole\n"
    said = verdict(EXPORT, "--find", "act_1").said
    assert said.isascii(), "what others wrote cannot turn the line around or ring the bell"


Change = Callable[[list[dict[str, Any]]], object]


def _at(found: list[dict[str, Any]], seq: int, chain: str = CHAIN) -> dict[str, Any]:
    (line,) = [each for each in found if each["type"] == "entry" and (each["chain"], each["seq"]) == (chain, seq)]
    return line


def _head(found: list[dict[str, Any]]) -> dict[str, Any]:
    (line,) = [each for each in found if each["type"] == "head" and each["chain"] == CHAIN]
    return line


def _swap(found: list[dict[str, Any]]) -> None:
    one, two = found.index(_at(found, 1)), found.index(_at(found, 2))
    found[one], found[two] = found[two], found[one]


def _rehash(found: list[dict[str, Any]]) -> None:
    """A body that fits its own hash: the chain does not."""
    line = _at(found, 2)
    line["body"] = line["body"].replace('"n":2', '"n":9')
    line["body_hash"] = hashlib.sha256(line["body"].encode()).hexdigest()


def _move_chain(found: list[dict[str, Any]]) -> None:
    moved = [line for line in found if line.get("chain") == CHAIN]
    for line in moved:
        found.remove(line)
    found[-1:-1] = moved


FORGERIES: dict[str, tuple[Change, str]] = {
    "body": (lambda f: _at(f, 2).update(body="{}"), "entry 2: its body was changed"),
    "body and its hash": (_rehash, "entry 2: its hash does not follow from the one before"),
    "body hash of an erased body": (
        lambda f: _at(f, ERASED).update(body_hash="00" * 32),
        "entry 3: its hash does not follow from the one before",
    ),
    "hash": (lambda f: _at(f, 4).update(hash="00" * 32), "entry 4: its hash does not follow from the one before"),
    "action": (lambda f: _at(f, 2).update(action="x"), "entry 2: its action differs from its body"),
    "action of an erased body": (
        lambda f: _at(f, ERASED).update(action="x"),
        "entry 3: its hash does not follow from the one before",
    ),
    "job": (lambda f: _at(f, 1).update(job=str(UUID(int=99))), "entry 1: its hash does not follow from the one before"),
    "job left out": (lambda f: _at(f, 2).update(job=None), "entry 2: its hash does not follow from the one before"),
    "format": (lambda f: _at(f, 1).update(format=1), "entry 1: its hash does not follow from the one before"),
    "unknown format": (lambda f: _at(f, 1).update(format=3), "entry 1: this script does not know its format, 3"),
    "blanked body": (lambda f: _at(f, 2).update(body=None), "entry 2: its body is gone, and no erase entry names it"),
    "blanked erase entry": (
        lambda f: _at(f, 4).update(body=None),
        "entry 3: its body is gone, and no erase entry names it (nor 1 more)",
    ),
    "microseconds": (lambda f: _at(f, 1).update(at_us=0), "entry 1: its hash does not follow from the one before"),
    "time that people read": (
        lambda f: _at(f, 1).update(created_at="2020-01-01T00:00:00.000000Z"),
        "entry 1: its two times differ",
    ),
    "session": (lambda f: _at(f, 1).update(session=str(SESSIONS[1])), "entry 1: it is of another chain"),
    "missing first": (lambda f: f.remove(_at(f, 1)), "entry 1: it is missing; the next one is 2"),
    "missing": (lambda f: f.remove(_at(f, 2)), "entry 2: it is missing; the next one is 3"),
    "missing last": (lambda f: f.remove(_at(f, 4)), "entry 4: the head says that there are 4"),
    "reordered": (_swap, "entry 1: it is missing; the next one is 2"),
    "twice": (lambda f: f.insert(f.index(_at(f, 2)), _at(f, 2)), "entry 3: it is missing; the next one is 2"),
    "head's number": (lambda f: _head(f).update(seq=5), "entry 5: the head says that there are 5"),
    "head's hash": (lambda f: _head(f).update(hash="00" * 32), "entry 4: the head holds another hash"),
    "head without a hash": (lambda f: _head(f).update(seq=None, hash=None), "its head is gone"),
    "no head": (lambda f: f.remove(_head(f)), "its head is not in the export"),
    "a chain elsewhere": (_move_chain, "it stands in the wrong place"),
    "kinds of values": (lambda f: _at(f, 1).update(seq="1"), "entry 1: it is malformed"),
    "true for one": (lambda f: _at(f, 1).update(seq=True), "entry 1: it is malformed"),
    "no hexadecimal": (lambda f: _at(f, 1).update(body_hash="zz" * 32), "entry 1: it is malformed"),
    "another spelling": (
        lambda f: _at(f, 3).update(body_hash=_at(f, 3)["body_hash"].upper()),
        "entry 3: it is malformed",
    ),
    "a time beyond all": (lambda f: _at(f, 1).update(at_us=2**70), "entry 1: it is malformed"),
}


OLD_RENAMED: dict[str, tuple[Change, str]] = {
    "action": (lambda f: _at(f, 2).update(action="x"), "entry 2: its action differs from its body"),
    "action of an erased body": (
        lambda f: _at(f, ERASED).update(action="x"),
        "entry 3: its action differs from what erase entry 4 says of it",
    ),
    "blanked body": (lambda f: _at(f, 1).update(body=None), "entry 1: its body is gone, and no erase entry names it"),
}


@pytest.mark.proves("D.601")
@pytest.mark.parametrize("name", OLD_RENAMED)
@pytest.mark.parametrize("version", [1, 2])
def test_exports_of_format_1_are_refused_where_an_action_was_renamed_or_a_body_blanked(name: str, version: int) -> None:
    """Also in a file that an earlier release exported: version 1 knows neither formats nor jobs."""
    change, reason = OLD_RENAMED[name]
    found = lines(trail(of_format=1))
    found[0]["version"] = version
    for line in found if version == 1 else []:
        line.pop("format") if line["type"] == "entry" else None
        line.pop("job", None)
    assert verdict(sealed(found)).said == "3 chains, 12 entries, 3 erased bodies: whole\n"
    before = by_the_plane(sealed(found))
    assert before is not None
    assert before.faults == []
    change(found)
    assert verdict(sealed(found)).said.splitlines()[:-1] == [f"chain {CHAIN}: {reason}"]
    by_us = by_the_plane(sealed(found))
    assert by_us is not None
    assert [f"entry {fault.seq}: {fault.reason}" for fault in by_us.faults] == [reason]


@pytest.mark.proves("D.82", "D.601")
@pytest.mark.parametrize("name", FORGERIES)
def test_the_first_bad_entry_of_a_chain_is_named(name: str) -> None:
    """Under a trailer that fits, as somebody would leave it who knows the format."""
    change, reason = FORGERIES[name]
    found = lines(EXPORT)
    change(found)
    verified = verdict(sealed(found))
    assert (verified.code, verified.said.splitlines()[:-1]) == (1, [f"chain {CHAIN}: {reason}"])
    assert verified.said.endswith(": NOT whole\n")
    by_us = by_the_plane(sealed(found))
    # An integer that is no time at all is no line of an export for the plane's own reader.
    assert by_us is not None or name == "a time beyond all"
    assert by_us is None or [str(fault.chain_id) for fault in by_us.faults] == [CHAIN]


def _headed(found: list[dict[str, Any]], session: object) -> list[dict[str, Any]]:
    return [found[0] | {"session": session}, *found[1:]]


@pytest.mark.proves("D.82")
def test_an_export_holds_the_chains_that_its_header_names() -> None:
    found = lines(EXPORT)
    of_session = [line for line in found if line.get("chain", CHAIN) == CHAIN]
    assert verdict(sealed(_headed(of_session, CHAIN))).said == "1 chains, 4 entries, 1 erased bodies: whole\n"
    nothing = [line for line in found if "chain" not in line]
    without_org = [line for line in found if line.get("chain") != str(ORG)]
    only_other = _headed([line for line in found if line.get("chain", CHAIN) != str(ORG)], str(UUID(int=9)))
    for forged in (_headed(nothing, CHAIN), only_other, _headed(found, CHAIN), nothing, without_org):
        verified = verdict(sealed(forged))
        reason, counted = verified.said.splitlines()
        assert (verified.code, reason) == (1, "these are not the chains that its header names")
        assert counted.endswith("NOT whole")


def test_what_others_wrote_cannot_turn_a_complaint_around() -> None:
    found = lines(EXPORT)
    strange = {"type": "head", "chain": "\u202e\x07", "seq": "\u202e", "hash": None}
    verified = verdict(sealed([*found[:-1], strange]))
    assert verified.code == 1
    assert verified.said.isascii()
    assert "\x07" not in verified.said
    assert "\\u202e" in verified.said


def test_each_chain_has_its_own_first_fault() -> None:
    found = lines(EXPORT)
    _at(found, 2).update(body="{}")
    _at(found, 4).update(body="{}")
    _at(found, 1, str(SESSIONS[1])).update(body="{}")
    assert verdict(sealed(found)).said.splitlines() == [
        f"chain {SESSIONS[0]}: entry 2: its body was changed",
        f"chain {SESSIONS[1]}: entry 1: its body was changed",
        "3 chains, 12 entries, 1 erased bodies: NOT whole",
    ]


def test_entries_after_a_fault_are_not_found() -> None:
    found = lines(EXPORT)
    _at(found, 1).update(body="{}")
    said = verdict(sealed(found), "--find", "approval_decision").said
    assert said.count('"seq": 2') == 2


_lines = EXPORT.splitlines(keepends=True)
NOT_EXPORTS = {
    "nothing": b"",
    "another file": b"hello\n",
    "other JSON": b'{"a":1}\n',
    "a list": b"[1]\n",
    "no header": b"".join(_lines[1:]),
    "two headers": _lines[0] + EXPORT,
    "cut at a line": b"".join(_lines[:-1]),
    "cut in a line": EXPORT[: len(EXPORT) // 2],
    "cut in the trailer": EXPORT[:-1],
    "more after the trailer": EXPORT + b"\n",
    "two exports": EXPORT + EXPORT,
    "an unknown version": EXPORT.replace(b'"version":2', b'"version":3'),
    "another format": EXPORT.replace(b"cortex-audit-export", b"cortex-other-export"),
    "an org that is none": EXPORT.replace(b'"org":{"id":', b'"org":{"no":'),
    "a field twice": EXPORT.replace(b'"seq":2,', b'"seq":1,"seq":2,', 1),
    "spaces": EXPORT.replace(b'"seq":2,', b'"seq": 2,', 1),
    "deep nonsense": b"[" * 100_000 + b"\n",
    "no text": b"\xff\xfe\x00\n",
}


@pytest.mark.proves("D.82")
@pytest.mark.parametrize("name", NOT_EXPORTS)
def test_what_is_cut_off_or_no_export_is_told_apart_from_what_was_changed(name: str) -> None:
    found = verdict(NOT_EXPORTS[name])
    assert by_the_plane(NOT_EXPORTS[name]) is None
    assert found.code == 2
    assert found.complained.startswith("-: ")
    assert "Traceback" not in found.complained
    assert "whole" not in found.said


def test_a_file_is_read_by_its_name_and_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    kept = tmp_path / "audit.ndjson"
    for code, said in ((2, "No such file"), (0, "3 chains, 12 entries, 3 erased bodies: whole")):
        done = subprocess.run([sys.executable, str(SCRIPT), str(kept)], capture_output=True, text=True)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True)
        kept.write_bytes(EXPORT)


@pytest.mark.parametrize("wrong", [{"entries": 13}, {"chains": 2}, {"sha256": "00" * 32}], ids=str)
def test_a_trailer_that_does_not_fit_is_found(wrong: dict[str, Any]) -> None:
    verified = verdict(b"".join(_lines[:-1]) + spelled(lines(EXPORT)[-1] | wrong))
    assert verified.code == 1
    assert verified.said.startswith("the trailer does not fit what stands before it\n")


# Any byte --------------------------------------------------------------------------------------------------------

_script = runpy.run_path(str(SCRIPT))


def _accepted(export: bytes) -> bool:
    """The same functions in this process: a new one for each of hundreds of bytes would be most of the test."""
    try:
        with redirect_stdout(io.StringIO()):
            return bool(_script["verify"](io.BytesIO(export), None))
    except (_script["NotAnExport"], *_script["MALFORMED"]):
        return False


def _resealed(before: bytes) -> bytes:
    return before + spelled(lines(EXPORT)[-1] | {"sha256": hashlib.sha256(before).hexdigest()})


_ENTRIES = [n for n, line in enumerate(_lines) if line.startswith(b'{"type":"entry"')]


@pytest.mark.proves("D.82")
@holds_for(st.data(), few=150, many=2000)
def test_any_single_byte_that_was_changed_is_found(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(EXPORT) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != EXPORT[place]))
    assert _accepted(EXPORT)
    changed = EXPORT[:place] + bytes([byte]) + EXPORT[place + 1 :]
    assert not _accepted(changed)
    assert by_the_plane(changed) is None


@pytest.mark.proves("D.82")
@holds_for(st.data(), few=200, many=2000)
def test_any_single_byte_of_an_entry_is_found_under_a_trailer_that_fits(data: st.DataObject) -> None:
    assert _resealed(b"".join(_lines[:-1])) == EXPORT
    number = data.draw(st.sampled_from(_ENTRIES))
    line = _lines[number]
    place = data.draw(st.integers(0, len(line) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != line[place]))
    changed = line[:place] + bytes([byte]) + line[place + 1 :]
    forged = _resealed(b"".join([*_lines[:number], changed, *_lines[number + 1 : -1]]))
    assert not _accepted(forged)
