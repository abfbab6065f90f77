"""`cortex db rotate-key`: a new master key takes the place of the old one, whatever is sealed and wherever the process dies."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.verbs import master_key
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.databases import KEY_FILE, NEXT_KEY_FILE, open_database
from cortex_plane.main.settings import Settings
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import ModelKeyDraft, Provider
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections, keys
from tests.conftest import Urls, _application
from tests.fixtures.approvals import Shipping, decide, ship, waiting
from tests.fixtures.credentials import link_for
from tests.fixtures.people import World
from tests.fixtures.servers import MASTER_KEY
from tests.fixtures.workers import call, job_of, leased, make_agent, submit, turn, until, working

OLD = Vault(bytes.fromhex(MASTER_KEY))
NEW_KEY = "5a" * 32
NEW = Vault(bytes.fromhex(NEW_KEY))
MODEL_KEY = "sk-model-key-0123456789"
ROOT = Path(__file__).parents[2]
GLOBAL = {"credential_key"}
"""Sealed, and of no org."""


async def cortex(urls: Urls, *words: str, stdin: str = "", **environment: str) -> tuple[int, str]:
    """A command, as an operator types it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", *words, cwd=ROOT,
        env=clean | {"DATABASE_URL": urls.app} | environment,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, output.decode()


@asynccontextmanager
async def started(urls: Urls, settings: Settings) -> AsyncIterator[Database]:
    """A process of the plane, which the HTTP application uses from here on."""
    state = _application().state
    async with open_database(settings, urls.app) as db:
        before, state.db = state.db, db
        try:
            yield db
        finally:
            state.db = before


def files(home: Path) -> dict[str, int]:
    """The mode of each file."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}


def key_in(home: Path, name: str = KEY_FILE) -> bytes:
    return bytes.fromhex((home / name).read_text())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / KEY_FILE).write_text(MASTER_KEY + "\n")
    (tmp_path / KEY_FILE).chmod(0o600)
    return tmp_path


class Secrets:
    """An org with a secret of every kind, and a job that waits with a checkpoint."""

    def __init__(self, world: World, shipping: Shipping, job: UUID, approval: Approval, webhook: str) -> None:
        self.world, self.shipping, self.job, self.approval, self.webhook = (world, shipping, job, approval, webhook)

    @classmethod
    async def create(cls, world: World) -> Secrets:
        shipping = Shipping()
        _, (first,) = await waiting(world, shipping, slug="first")
        await decide(world, first)  # signs a receipt
        await link_for(world, first)  # makes the secret that signs links
        job, (approval,) = await waiting(world, shipping, ship("2.0"))
        await keys.put_model_key(world.db, world.admin.actor, Provider.ANTHROPIC, ModelKeyDraft(key=MODEL_KEY))
        draft = ConnectionDraft(channel_type="webhook", name="hook", url="https://example.com/hook")
        made = await connections.create_connection(world.db, world.admin.actor, draft)
        assert made.secret is not None
        return cls(world, shipping, job, approval, made.secret)

    async def check(self, http: httpx.AsyncClient, db: Database, vault: Vault) -> None:
        """Everything that needs the master key works with this one."""
        world = replace(self.world, db=db)
        async with db.transaction(world.org_id) as tx:
            values = await tenancy_store.list_sealed_values(tx)
        secrets = {value.kind: vault.open(world.org_id, value.purpose, value.sealed) for value in values}
        assert secrets.keys() == {"signing_key", "signing_secret", "model_key", "channel_connection"}
        assert secrets["model_key"].decode() == MODEL_KEY
        assert self.webhook in secrets["channel_connection"].decode()
        verification = await audit.verify_org(db, world.org_id)
        assert (verification.faults, verification.row_faults, verification.root_faults) == ([], [], [])
        assert (await http.get("/v1/me", headers=world.admin.headers)).status_code == 200

    async def finish(self, db: Database, key: bytes) -> None:
        """Decide the approval: the job goes on from its checkpoint."""
        world = replace(self.world, db=db)
        await decide(world, self.approval)
        async with working(db, self.shipping.app, key=key):
            await until(world, self.job, JobStatus.COMPLETED)


async def rotations(world: World, db: Database) -> list[str]:
    """The entries of the org's chain, as text."""
    entries = await audit.list_entries(db, world.admin.actor, None, 0, 200)
    return [str(entry.body) for entry in entries if entry.action == "master_key_rotated"]


@pytest.mark.proves("D.631")
async def test_every_secret_is_sealed_with_the_new_key(
    http: httpx.AsyncClient, strict: World, urls: Urls, admin: asyncpg.Connection, home: Path
) -> None:
    acme, globex = (
        await Secrets.create(strict),
        await Secrets.create(await World.create(strict.db, "globex", policies=None)),
    )
    code, output = await cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home))
    assert code == 0, output
    assert "secrets and 4 checkpoints of 2 orgs are sealed with the new master key" in output
    assert "start the processes" in output
    new_key, old_file = key_in(home), f"{KEY_FILE}.{OLD.fingerprint.hex()[:8]}"
    new = Vault(new_key)
    assert files(home) == {KEY_FILE: 0o600, old_file: 0o600}
    assert (new_key.hex() == MASTER_KEY, key_in(home, old_file).hex()) == (False, MASTER_KEY)
    assert tuple(await admin.fetchrow("select * from plane_key") or ())[1:] == (
        new.fingerprint, None, None, None, None,
    )  # fmt: skip
    async with started(urls, Settings(home=home, pool_size=5)) as db:
        for secrets in (acme, globex):
            await secrets.check(http, db, new)
            with pytest.raises(SetupError, match="does not open"):
                await secrets.check(http, db, OLD)
            (entry,) = await rotations(secrets.world, db)
            assert new.fingerprint.hex() in entry
            assert "'signing_secret': 1" in entry
            for secret in (MODEL_KEY, secrets.webhook, new_key.hex(), MASTER_KEY):
                assert secret not in entry
        await acme.finish(db, new_key)
        _, output = await cortex(urls, "doctor", CORTEX_HOME=str(home))
        assert "those in force were put there by the plane" in output
        _, output = await cortex(urls, "audit", "verify", CORTEX_HOME=str(home))
        assert "NOT checked" not in output
    with pytest.raises(SetupError) as refused:
        async with open_database(Settings(home=home, master_key=MASTER_KEY), urls.app):
            pass
    assert refused.value.code == "wrong_master_key"


@pytest.mark.proves("D.631")
async def test_no_sealed_column_is_forgotten(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        "select table_name from information_schema.columns where table_schema = 'public' and column_name = 'sealed'"
    )
    assert {row["table_name"] for row in rows} == GLOBAL | {
        "signing_key", "signing_secret", "model_key", "channel_connection",
    }  # fmt: skip


@pytest.mark.proves("D.632")
async def test_a_rotation_that_is_killed_is_finished_by_the_next_process(
    http: httpx.AsyncClient, strict: World, urls: Urls, home: Path
) -> None:
    """SIGKILL after each commit; then a process of the plane starts, and the next rotation is killed one commit later."""
    acme, globex = (
        await Secrets.create(strict),
        await Secrets.create(await World.create(strict.db, "globex", policies=None)),
    )
    settings, kills = Settings(home=home, pool_size=5), 0
    begun = set()
    for commit in range(1, 100):
        at = {"CORTEX_HOME": str(home), "CORTEX_CRASH_AT": f"commit:after#{commit}"}
        code, output = await cortex(urls, "db", "rotate-key", **at)
        if code == 0:
            break
        assert code == -9, output
        kills += 1
        plane_key = await master_key.read_plane_key(strict.db)
        assert plane_key is not None
        begun.add((plane_key.previous is not None, NEXT_KEY_FILE in files(home)))
        async with started(urls, settings) as db:
            plane_key = await master_key.read_plane_key(db)
            assert plane_key is not None
            assert plane_key.previous is None
            for secrets in (acme, globex):
                await secrets.check(http, db, Vault(key_in(home)))
    assert begun == {(False, False), (False, True), (True, True), (True, False)}, "every state was met"
    assert kills > 8
    async with started(urls, settings) as db:
        await acme.finish(db, key_in(home))


@pytest.mark.proves("D.632")
async def test_a_rotation_goes_on_between_two_batches_of_checkpoints(
    http: httpx.AsyncClient, strict: World, urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = await Secrets.create(strict)
    monkeypatch.setattr(master_key, "CHECKPOINTS_AT_ONCE", 1)
    await master_key.begin_rotation(strict.db, OLD, NEW, 3)
    plane_key = await master_key.read_plane_key(strict.db)
    assert plane_key is not None
    (org,) = (await tenancy_store.list_orgs(strict.db, None, 10)).items
    batch = await master_key._reseal_batch(strict.db, plane_key, None, org, NEW)
    assert (batch.orgs, batch.checkpoints) == (0, 1), "the other checkpoint is still of the old key"
    stale = await master_key._reseal_batch(strict.db, plane_key, None, org, NEW)
    assert stale == master_key.Resealed(), "whoever was slower does nothing"
    finished = await asyncio.gather(*(master_key.finish_rotation(strict.db, NEW) for _ in range(4)))
    assert sum(result.checkpoints for result in finished if result) == 1
    async with started(urls, Settings(home=tmp_path, master_key=NEW_KEY, pool_size=5)) as db:
        await secrets.check(http, db, NEW)
        await secrets.finish(db, bytes.fromhex(NEW_KEY))
        assert len(await rotations(strict, db)) == 1


@pytest.mark.proves("D.633")
async def test_a_key_from_the_environment_is_rotated_from_the_standard_input(
    http: httpx.AsyncClient, strict: World, urls: Urls, tmp_path: Path
) -> None:
    secrets = await Secrets.create(strict)
    here = {"CORTEX_HOME": str(tmp_path), "CORTEX_MASTER_KEY": MASTER_KEY}
    for stdin, expected in (("", "invalid_setting"), ("12", "invalid_setting"), (MASTER_KEY, "same_master_key")):
        code, output = await cortex(urls, "db", "rotate-key", stdin=stdin, **here)
        assert (code, expected in output) == (1, True), output
    wrong = here | {"CORTEX_MASTER_KEY": "ff" * 32}
    code, output = await cortex(urls, "db", "rotate-key", stdin=NEW_KEY, **wrong)
    assert (code, "wrong_master_key" in output) == (1, True), output
    await secrets.check(http, strict.db, OLD)
    code, output = await cortex(urls, "db", "rotate-key", stdin=NEW_KEY, **here)
    assert (code, "set CORTEX_MASTER_KEY to the new key" in output) == (0, True), output
    for key in (MASTER_KEY, NEW_KEY):
        code, output = await cortex(urls, "db", "rotate-key", stdin=NEW_KEY, **here | {"CORTEX_MASTER_KEY": key})
        expected = "has this master key already" if key == MASTER_KEY else "same_master_key"
        assert (code, expected in output) == (int(key == NEW_KEY), True), output
    assert files(tmp_path) == {}
    async with started(urls, Settings(home=tmp_path, master_key=NEW_KEY, pool_size=5)) as db:
        await secrets.check(http, db, NEW)
        assert len(await rotations(strict, db)) == 1


@pytest.mark.proves("D.633")
async def test_a_wrong_key_file_changes_nothing(strict: World, urls: Urls, home: Path) -> None:
    await master_key.require_key(strict.db, OLD)
    (home / KEY_FILE).write_text("ff" * 32)
    code, output = await cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home))
    assert (code, "wrong_master_key" in output) == (1, True), output
    assert list(files(home)) == [KEY_FILE]


@pytest.mark.proves("D.634")
async def test_it_is_refused_while_a_secret_does_not_open(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection, urls: Urls, home: Path
) -> None:
    secrets = await Secrets.create(strict)
    before = await admin.fetchval("update model_key set sealed = $1 returning sealed", b"\x01" + bytes(40))
    code, output = await cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home))
    assert (code, "sealed_unreadable" in output, "model_key anthropic of" in output) == (1, True, True), output
    assert before is not None
    plane_key = await master_key.read_plane_key(strict.db)
    assert plane_key is not None
    assert (plane_key.fingerprint, plane_key.previous) == (OLD.fingerprint, None)
    sealed = OLD.seal(strict.org_id, "model key anthropic", MODEL_KEY.encode())
    await admin.execute("update model_key set sealed = $1", sealed)
    await secrets.check(http, strict.db, OLD)
    code, output = await cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home))
    assert code == 0, output


@pytest.mark.proves("D.634")
async def test_what_was_written_by_hand_meanwhile_does_not_stop_the_plane(
    strict: World, admin: asyncpg.Connection, urls: Urls, tmp_path: Path
) -> None:
    await Secrets.create(strict)
    await master_key.begin_rotation(strict.db, OLD, NEW, 3)
    await admin.execute("update model_key set sealed = $1", b"\x01" + bytes(40))
    async with started(urls, Settings(home=tmp_path, master_key=NEW_KEY, pool_size=5)) as db:
        (entry,) = await rotations(strict, db)
        assert "model_key anthropic" in entry


@pytest.mark.proves("D.634")
async def test_no_process_with_the_old_key_writes_beside_it(
    strict: World, admin: asyncpg.Connection, urls: Urls, home: Path
) -> None:
    """A worker that runs is a reason to refuse. One that only slept has lost its job, and is refused when it comes back."""
    shipping = Shipping()
    agent = await make_agent(strict, [turn(call("look"), text="I look.")])
    id = await submit(strict, agent)
    worker, given = await leased(strict.db, shipping.app, lease=timedelta(hours=1))
    code, output = await cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home))
    assert (code, "workers_running" in output, "lost" in output) == (1, True, True), output
    await admin.execute("update worker set expires_at = plane_now() - interval '1 minute'")
    code, output = await cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home))
    assert code == 0, output
    assert await admin.fetchval("select worker_id from job where id = $1", id) is None
    assert await jobs_store.beat_worker(strict.db, worker.id, timedelta(hours=1)) is None
    with pytest.raises(SetupError) as refused:
        await worker._register()
    assert refused.value.code == "wrong_master_key"
    with pytest.raises(SetupError):
        await keys.put_model_key(strict.db, strict.admin.actor, Provider.OPENAI, ModelKeyDraft(key=MODEL_KEY))
    assert await admin.fetchval("select count(*) from model_key") == 0
    assert (given.job_id, (await job_of(strict, id)).status) == (id, JobStatus.RUNNING)


@pytest.mark.proves("D.632")
async def test_two_rotations_at_once_are_one(http: httpx.AsyncClient, strict: World, urls: Urls, home: Path) -> None:
    secrets = await Secrets.create(strict)
    results = await asyncio.gather(*(cortex(urls, "db", "rotate-key", CORTEX_HOME=str(home)) for _ in range(2)))
    assert 0 in [code for code, _ in results], results
    async with started(urls, Settings(home=home, pool_size=5)) as db:
        await secrets.check(http, db, Vault(key_in(home)))


@pytest.mark.proves("D.634")
async def test_a_finished_rotation_cannot_be_replayed(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection, urls: Urls, tmp_path: Path
) -> None:
    """Whoever has the old key and can write to the database has nothing sealed anew, in no org and at no place of a rotation."""
    secrets = await Secrets.create(strict)
    await master_key.begin_rotation(strict.db, OLD, NEW, 3)
    previous = await admin.fetchval("select previous from plane_key")
    settings = Settings(home=tmp_path, master_key=NEW_KEY, pool_size=5)
    async with started(urls, settings) as db:
        await secrets.check(http, db, NEW)
        newer = await World.create(db, "globex", policies=None)
        forged = OLD.seal(newer.org_id, "model key anthropic", b"forged")
        await keys.put_model_key(db, newer.admin.actor, Provider.ANTHROPIC, ModelKeyDraft(key=MODEL_KEY))
    await admin.execute("update model_key set sealed = $1 where org_id = $2", forged, newer.org_id)
    for job in (None, UUID(int=0)):
        await admin.execute("update plane_key set previous = $1, resealed_job = $2", previous, job)
        with pytest.raises(SetupError) as refused:
            async with started(urls, settings):
                pass
        assert refused.value.code == "rotation_replayed"
    assert await admin.fetchval("select sealed from model_key where org_id = $1", newer.org_id) == forged
    await admin.execute("update plane_key set previous = null, resealed_job = null")
    await admin.execute("delete from model_key where org_id = $1", newer.org_id)
    await master_key.begin_rotation(strict.db, NEW, OLD, 3)
    await master_key.finish_rotation(strict.db, OLD)
    with pytest.raises(SetupError) as refused:
        await master_key.begin_rotation(strict.db, OLD, NEW, 3)
    assert refused.value.code == "same_master_key"


@pytest.mark.proves("D.634")
async def test_a_replaced_master_key_makes_no_credential_key(
    strict: World, admin: asyncpg.Connection, urls: Urls
) -> None:
    await master_key.require_key(strict.db, OLD)
    await admin.execute("delete from credential_key")
    await master_key.begin_rotation(strict.db, OLD, NEW, 3)
    await master_key.finish_rotation(strict.db, NEW)
    for vault, count in ((OLD, 0), (NEW, 1)):
        db = await Database.open(urls.app, max_size=2, vault=vault)
        await db.close()
        assert await admin.fetchval("select count(*) from credential_key") == count
