"""Clients that share nothing with the plane but `proto/`: Node's own, and one that asks over reflection. Also TLS, and `proto/` itself."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2
from scripts.protos import PACKAGE, RELEASED, SOURCE, generated

import grpc
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.api_process import create_app
from cortex_plane.main.doctor import _CHECKS
from cortex_plane.main.grpc_door import grpc_door, why_closed
from cortex_plane.main.settings import Settings
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from grpc import aio
from tests.fixtures.people import World, apply_policies
from tests.grpc.door import Client, open_door, refused

MODULES = Path(__file__).parents[2] / ".venv" / "types" / "node_modules"
POLICIES = """
policies:
  - {name: refunds, target: "refunds.*", effect: requires_approval, approvers: {roles: [admin]}}
"""


@pytest.mark.proves("S4.40")
@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "@grpc" / "grpc-js").exists(),
    reason="gRPC's client for Node is not here: `make types` fetches it with npm",
)
async def test_a_client_of_node_pauses_resumes_requests_decides_and_watches(world: World) -> None:
    await apply_policies(world.db, world.admin.actor, POLICIES)
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    session = await session_lifecycle.create(world.db, world.admin.actor, draft)
    async with open_door(world.db) as door:
        process = await asyncio.create_subprocess_exec(
            "node", str(Path(__file__).with_name("foreign_client.cjs")), door.address, world.admin.secret, str(session.id),
            str(SOURCE), env={"NODE_PATH": str(MODULES), "PATH": "/usr/bin:/bin:/usr/local/bin"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(30):
            output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert json.loads(output) == {
        "services": [
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "upsquad.governance.v1.ApprovalService",
            "upsquad.governance.v1.GovernanceService",
            "upsquad.runtime.v1.LifecycleService",
        ],
        "refused": grpc.StatusCode.UNAUTHENTICATED.value[0],
        "deduplicated": [False, True, True],
        "results": ["RECORD_RESULT_OK", "RECORD_RESULT_DUPLICATE", "RECORD_RESULT_CONFLICT"],
        "decided": "approved",
        "paused": "AGENT_STATUS_SUSPENDED",
        "reason": "from Node",
        "rest": ["status", "session_resumed"],
        "resumed": "AGENT_STATUS_ACTIVE",
        "twice": grpc.StatusCode.FAILED_PRECONDITION.value[0],
    }


class Authority:
    """A certificate authority of one test."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = folder / f"{name}.pem"
        self._certificate = self._sign(name, self._key, None)
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate for the loopback and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key, self._certificate)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, by: x509.Certificate | None) -> x509.Certificate:
        subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by.subject if by else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        )
        if by is not None:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


@pytest.mark.proves("S4.213")
async def test_tls_proves_the_plane_and_mtls_the_client_and_the_key_says_who_it_is(
    world: World, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    certificate, key = authority.issue("plane")
    root = authority.certificate.read_bytes()
    listing = approval_pb2.ListApprovalsRequest()

    def shown(by: Authority, name: str) -> grpc.ChannelCredentials:
        own = by.issue(name)
        return grpc.ssl_channel_credentials(root, own[1].read_bytes(), own[0].read_bytes())

    files: dict[str, Any] = {"grpc_tls_cert": certificate, "grpc_tls_key": key}
    async with open_door(world.db, **files) as door:
        async with door.channel(grpc.ssl_channel_credentials(root)) as channel:
            client = Client(channel, world.admin)
            await client.call(client.approvals.ListApprovals, listing)
        for credentials in (None, grpc.ssl_channel_credentials(stranger.certificate.read_bytes())):
            async with door.channel(credentials) as channel:
                client = Client(channel, world.admin)
                assert (await refused(client.call(client.approvals.ListApprovals, listing))).code == "UNAVAILABLE"
    async with open_door(world.db, **files, grpc_client_ca=authority.certificate) as door:
        async with door.channel(shown(authority, "bridge")) as channel:
            client = Client(channel, world.admin)
            await client.call(client.approvals.ListApprovals, listing)
            # A certificate is no key.
            assert (await refused(client.approvals.ListApprovals(listing))).code == "UNAUTHENTICATED"
        for credentials in (grpc.ssl_channel_credentials(root), shown(stranger, "spy")):
            async with door.channel(credentials) as channel:
                client = Client(channel, world.admin)
                assert (await refused(client.call(client.approvals.ListApprovals, listing))).code == "UNAVAILABLE"
    wrong_files: list[dict[str, Any]] = [
        {"grpc_tls_cert": certificate}, {"grpc_client_ca": authority.certificate},
        {"grpc_tls_cert": tmp_path / "nothing", "grpc_tls_key": key},
        {"grpc_tls_cert": certificate, "grpc_tls_key": stranger.issue("other")[1]},
    ]  # fmt: skip
    for wrong in wrong_files:
        with pytest.raises(SetupError):
            async with open_door(world.db, **wrong):
                pass
    # Also where the port after HTTP's is tried first.
    both = Settings(port=18_420, grpc="on", grpc_tls_cert=certificate, grpc_tls_key=stranger.folder / "other.key")
    with pytest.raises(SetupError, match="Cannot serve gRPC"):
        async with grpc_door(both, create_app(world.db, Metrics()), world.db):
            pass


async def health(channel: aio.Channel, service: str = "") -> Any:
    call: Any = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return await call(health_pb2.HealthCheckRequest(service=service))


@pytest.mark.proves("S4.213")
async def test_health_needs_no_key_and_the_door_opens_where_it_is_safe(world: World) -> None:
    async with open_door(world.db) as door:
        async with door.channel() as channel:
            for service in ("", "upsquad.governance.v1.ApprovalService"):
                answer = await health(channel, service)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        port = int(door.address.rpartition(":")[2])
        with pytest.raises(SetupError, match="Cannot serve gRPC"):
            async with open_door(world.db, grpc_port=port):
                pass
    async with aio.insecure_channel(door.address) as channel:
        assert (await refused(health(channel))).code == "UNAVAILABLE"
    assert why_closed(Settings()) is None
    assert why_closed(Settings(host="0.0.0.0")) is not None
    assert why_closed(Settings(host="0.0.0.0", grpc="on")) is None
    assert why_closed(Settings(host="0.0.0.0", grpc_tls_cert=Path("x"))) is None
    assert why_closed(Settings(grpc="off")) is not None
    assert await _CHECKS["grpc"](Settings()) == "served without TLS"
    with pytest.raises(SetupError, match="A certificate needs its key"):
        await _CHECKS["grpc"](Settings(grpc_tls_cert=Path("x")))


def test_the_modules_are_what_the_compiler_makes_of_the_files() -> None:
    modules = generated()
    stored = {path: (PACKAGE / path).read_text() for path in modules}
    assert modules == stored, "run `python -m scripts.protos`"


@pytest.mark.proves("S4.214")
def test_the_files_keep_to_the_rules_and_break_no_client_of_the_last_release() -> None:
    buf = Path(sys.executable).parent / "buf"
    for words in (["lint"], ["breaking", "--against", str(RELEASED)]):
        done = subprocess.run([buf, *words], cwd=SOURCE, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
