"""Receipts, roots and keys from the command line; verifying needs neither a plane nor a key."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.channels.root_copies import RootsFile
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.verbs.master_key import require_key
from cortex_plane.proof.verbs import audit
from cortex_plane.proof.verbs.audit import copied_to
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import Live, _serving
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, decide, waiting
from tests.fixtures.exports import lines, sealed
from tests.fixtures.people import World
from tests.fixtures.proofs import Hand


@pytest.fixture
def live(urls: Urls, tmp_path: Path) -> Iterator[Live]:
    ready: list[Live] = []
    is_ready, leave = threading.Event(), threading.Event()

    async def main() -> None:
        db = await Database.open(urls.app, max_size=5, vault=Vault(bytes(range(32))))
        world = await World.create(db, "strict", policies=None)
        async with _serving(db) as url:
            clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
            clean |= {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "300"}
            ready.append(
                Live(asyncio.get_running_loop(), world, Shell(tmp_path, clean), asyncio.Event(), asyncio.Event())
            )
            is_ready.set()
            await asyncio.to_thread(leave.wait)
        await db.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    with capture_logs():
        thread.start()
        try:
            assert is_ready.wait(30)
            yield ready[0]
        finally:
            leave.set()
            thread.join()


def alone(live: Live) -> Shell:
    """A machine without a plane, without a key and without a database."""
    gone = ("CORTEX_URL", "CORTEX_KEY")
    return Shell(live.shell.folder, {k: v for k, v in live.shell.environment.items() if k not in gone})


@pytest.mark.proves("D.171", "D.178", "D.599")
def test_a_receipt_is_saved_and_verified_offline(live: Live) -> None:
    async def decided() -> str:
        _, (asked,) = await waiting(live.world, Shipping())
        await decide(live.world, asked)
        return str(asked.id)

    id = live.begin(decided())()
    shell, offline, folder = live.shell, alone(live), live.shell.folder
    printed = json.loads(shell.run("approval", "receipt", id).stdout)
    assert set(printed) == {"body", "signature", "public_key", "key_id", "fingerprint"}
    shell.run("approval", "receipt", id, "--out", "receipt.json")
    kept = folder / "receipt.json"
    assert json.loads(kept.read_text()) == printed
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    shell.run("approval", "receipt", id, "--out", "receipt.json", expect=4)
    assert json.loads(kept.read_text()) == printed, "what is there is evidence, and stays"

    said = offline.run("approval", "receipt", "--verify", "receipt.json").stdout
    assert said.startswith("valid: ship was approved by Ada at ")
    assert (id in said, printed["fingerprint"] in said, "compare the key" in said) == (True, True, True)
    (key,) = shell.many("audit", "keys")
    pinned = ("--key", str(key["fingerprint"]))
    assert "compare" not in offline.run("approval", "receipt", "--verify", "receipt.json", *pinned).stdout
    (folder / "key.pub").write_text(str(key["public_key"]) + "\n")
    offline.run("approval", "receipt", "--verify", "receipt.json", "--public-key", "key.pub")
    wrong = offline.run("approval", "receipt", "--verify", "receipt.json", "--key", "0" * 64, expect=1)
    assert "NOT valid: it is signed with another key" in wrong.stdout
    forged = printed | {"body": printed["body"].replace("Ada", "Eve")}
    (folder / "forged.json").write_text(json.dumps(forged))
    wrong = offline.run("approval", "receipt", "--verify", "forged.json", expect=1)
    assert "NOT valid: its signature is false" in wrong.stdout
    assert "Eve" not in wrong.stdout, "what is not true is not told"
    (folder / "forged.json").write_text(json.dumps(printed | {"key_id": "01936f3a-0000-7000-8000-000000000000"}))
    wrong = offline.run("approval", "receipt", "--verify", "forged.json", expect=1)
    assert "NOT valid: its `key_id` is not the one that was signed" in wrong.stdout


def test_what_makes_no_sense_is_refused(live: Live) -> None:
    shell, folder = live.shell, live.shell.folder
    (folder / "note.txt").write_text("hello")
    nobody = "01936f3a-0000-7000-8000-000000000000"
    for words, code in (
        ((), 2),
        ((nobody, "--verify", "note.txt"), 2),
        ((nobody,), 3),
        ((nobody, "--key", "0" * 64), 2),
        (("--verify", "note.txt"), 2),
        (("--verify", "nothing.json"), 2),
        (("--verify", "note.txt", "--out", "x"), 2),
        (("--verify", "note.txt", "--key", "short"), 2),
        (("--verify", "note.txt", "--public-key", "note.txt"), 2),
        (("--verify", "note.txt", "--key", "0" * 64, "--public-key", "note.txt"), 2),
    ):
        said = shell.run("approval", "receipt", *words, expect=code)
        assert "error" in said.stderr
        assert "Traceback" not in said.stderr


@pytest.mark.proves("D.178")
def test_roots_keys_and_exports(live: Live, urls: Urls) -> None:
    shell, offline, folder = live.shell, alone(live), live.shell.folder
    assert shell.run("audit", "roots").stdout == "nothing yet\n"
    first = shell.run("audit", "root").stdout
    assert "root 1: covers 1 of 1 chains" in first
    assert "nothing was appended since" in shell.run("audit", "root").stdout
    old = str(shell.many("audit", "keys")[0]["fingerprint"])
    new = str(shell.one("audit", "rotate-key")["fingerprint"])
    assert shell.one("audit", "root")["made"] is True
    assert [root["seq"] for root in shell.many("audit", "roots")] == [2, 1]

    both = ("--key", old, "--key", new)
    for found in (
        shell.run("audit", "verify", "--remote", *both),
        shell.run("audit", "verify", *both, DATABASE_URL=urls.app),
    ):
        assert "2 roots, whole" in found.stdout
        assert (old in found.stdout, new in found.stdout) == (True, True)
    here: dict[str, Any] = {"DATABASE_URL": urls.app}
    alone_there = shell.run("audit", "verify", **here).stdout
    assert "2 roots, whole" in alone_there
    assert "keys NOT checked: there is no master key here" in alone_there
    (report,) = shell.many("audit", "verify", **here)
    assert report["keys_checked"] is False
    assert not (folder / ".cortex").exists(), "looking makes no key"
    with_key = here | {"CORTEX_MASTER_KEY": bytes(range(32)).hex()}
    assert "NOT checked" not in shell.run("audit", "verify", **with_key).stdout
    (report,) = shell.many("audit", "verify", **with_key)
    assert report["keys_checked"] is True
    assert "NOT checked" not in shell.run("audit", "verify", "--remote").stdout, "the plane has its key"
    shell.run("audit", "verify", "--remote", "--key", old, expect=1)
    shell.run("audit", "verify", "--key", "x", expect=2)

    shell.run("audit", "export", "audit.ndjson")
    assert "2 roots, whole" in offline.run("audit", "verify", "--export", "audit.ndjson", *both).stdout
    strange = offline.run("audit", "verify", "--export", "audit.ndjson", "--key", new, expect=1)
    assert f"signed with {old}, which you did not name" in strange.stdout
    whole = lines((folder / "audit.ndjson").read_bytes())
    _forge(whole)
    (folder / "forged.ndjson").write_bytes(sealed(whole))
    forged = offline.run("audit", "verify", "--export", "forged.ndjson", expect=1).stdout
    assert "root 2: its hash does not follow" in forged
    report = json.loads(offline.run("audit", "verify", "--export", "forged.ndjson", "--json", expect=1).stdout)
    assert report[0]["root_faults"][0]["root"] == 2
    (folder / "cut.ndjson").write_bytes((folder / "audit.ndjson").read_bytes()[:-10])
    assert "not a whole export" in offline.run("audit", "verify", "--export", "cut.ndjson", expect=2).stderr
    offline.run("audit", "verify", "--export", "nothing.ndjson", expect=2)

    async def unsigned() -> bytes:
        chunks = await audit.export_trail(live.world.db, live.world.admin.actor, None)
        found = lines(b"".join([chunk async for chunk in chunks]))
        return sealed([line for line in found if line["type"] not in ("root", "rooted", "key")])

    (folder / "unsigned.ndjson").write_bytes(live.begin(unsigned())())
    offline.run("audit", "verify", "--export", "unsigned.ndjson")
    alarm = offline.run("audit", "verify", "--export", "unsigned.ndjson", "--key", new, expect=1)
    assert "nothing vouches for this" in alarm.stdout


@pytest.mark.proves("D.176")
def test_roots_that_a_writer_of_the_database_signed_are_named(live: Live, urls: Urls) -> None:
    """With the master key at hand: their own key stands in the list, and is not believed."""
    shell, mallory = live.shell, Hand(9)
    shell.run("audit", "root")

    async def sign() -> None:
        admin = await asyncpg.connect(urls.admin)
        try:
            (root,) = await admin.fetch("select org_id, body from audit_root")
            await admin.execute(
                "insert into signing_key (org_id, id, public_key, sealed, retired_at)"
                " values ($1, $2, $3, '', plane_now())",
                root["org_id"], mallory.id, mallory.public,
            )  # fmt: skip
            await admin.execute(
                "update audit_root set key_id = $1, signature = $2", mallory.id, mallory.private.sign(root["body"])
            )
        finally:
            await admin.close()

    live.begin(sign())()
    with_key: dict[str, Any] = {"DATABASE_URL": urls.app, "CORTEX_MASTER_KEY": bytes(range(32)).hex()}
    for words, environment in ((("audit", "verify"), with_key), (("audit", "verify", "--remote"), {})):
        said = shell.run(*words, expect=1, **environment).stdout
        assert f"root 1: it is signed with {mallory.fingerprint}, which is no key of the plane" in said


@pytest.mark.proves("D.601", "D.602", "D.603", "D.605")
def test_what_somebody_changed_behind_the_plane_is_printed_line_by_line(live: Live, urls: Urls) -> None:
    shell, offline, folder = live.shell, alone(live), live.shell.folder
    here: dict[str, Any] = {"DATABASE_URL": urls.app, "CORTEX_MASTER_KEY": bytes(range(32)).hex()}

    async def speak() -> str:
        return str((await live.world.say("one")).session_id)

    def tamper(*statements: str) -> None:
        async def change() -> None:
            admin = await asyncpg.connect(urls.admin)
            try:
                await admin.execute("set session_replication_role = replica")
                for statement in statements:
                    await admin.execute(statement)
            finally:
                await admin.close()

        live.begin(change())()

    session = live.begin(speak())()
    with copied_to([RootsFile(folder / "audit.jsonl")]):
        shell.run("audit", "root")
    held = ("--roots", "audit.jsonl")
    assert "1 roots, whole" in shell.run("audit", "verify", *held, **here).stdout
    shell.run("audit", "export", "audit.ndjson")
    assert "1 roots, whole" in offline.run("audit", "verify", "--export", "audit.ndjson", *held).stdout
    shell.run("audit", "verify", "--remote", *held, expect=2)

    tamper("update message set text = 'two'")
    wrong = f"session {session}, message 1: its text is not what entry 3 says was received"
    for words in (("audit", "verify"), ("audit", "verify", "--remote")):
        assert f"  {wrong}\n" in shell.run(*words, expect=1, **here).stdout
    (report,) = json.loads(shell.run("audit", "verify", "--json", expect=1, **here).stdout)
    assert [f"{fault['subject']}: {fault['reason']}" for fault in report["row_faults"]] == [wrong]

    tamper(
        "update message set text = 'one'",
        f"update audit_entry set body = null where session_id = '{session}' and seq = 3",
    )
    shell.run("audit", "export", "blanked.ndjson")
    gone = f"chain {session}, entry 3: its body is gone, and no erase entry names it"
    for said in (
        shell.run("audit", "verify", expect=1, **here),
        offline.run("audit", "verify", "--export", "blanked.ndjson", expect=1),
    ):
        assert f"  {gone}\n" in said.stdout
        assert "1 erased bodies, 1 broken" in said.stdout

    tamper("delete from audit_root_head", "delete from audit_root")
    audit._compared_orgs.clear()
    shell.run("audit", "root")
    assert "root 1" not in shell.run("audit", "verify", expect=1, **here).stdout
    restarted = "root 1: the copy that is held outside has another hash: roots were started anew, or replaced"
    assert restarted in shell.run("audit", "verify", *held, expect=1, **here).stdout

    tamper(f"delete from session where id = '{session}'")
    assert f"chain {session}, entry 0: its session is gone" in shell.run("audit", "verify", expect=1, **here).stdout


@pytest.mark.proves("D.605")
def test_an_older_export_fits_the_copies_of_today(live: Live) -> None:
    shell, held = live.shell, ("--roots", "audit.jsonl")
    with copied_to([RootsFile(shell.folder / "audit.jsonl")]):
        shell.run("audit", "root")
        shell.run("audit", "export", "audit.ndjson")
        live.begin(live.world.say("one"))()
        shell.run("audit", "root")
    found = alone(live).run("audit", "verify", "--export", "audit.ndjson", *held).stdout
    assert "1 roots, whole" in found
    assert "1 copies of roots are newer than the export and were not compared" in found


def test_another_master_key_is_no_fault_of_the_trail(live: Live, urls: Urls) -> None:
    """Where the database knows which key is its own, another one is said to be wrong, and no key is called forged."""
    shell, folder = live.shell, live.shell.folder
    shell.run("audit", "root")
    here: dict[str, Any] = {"DATABASE_URL": urls.app}

    async def known() -> None:
        await require_key(live.world.db, Vault(bytes(range(32))))

    live.begin(known())()
    (folder / ".cortex").mkdir()
    (folder / ".cortex" / "master.key").write_text("ab" * 32 + "\n")
    said = shell.run("audit", "verify", expect=1, **here).stderr
    assert "not the one that this database was used with" in said
    (folder / ".cortex" / "master.key").write_text(bytes(range(32)).hex() + "\n")
    assert "NOT checked" not in shell.run("audit", "verify", **here).stdout


def _forge(found: list[dict[str, object]]) -> None:
    root = next(line for line in found if line["type"] == "root" and line["seq"] == 2)
    root["body"] = str(root["body"]).replace('"chains":1', '"chains":7')
