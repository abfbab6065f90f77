"""Somebody else's server, which takes webhooks in: well, badly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from standardwebhooks import Webhook


@dataclass(frozen=True)
class Reply:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    silent: bool = False
    """Nothing is ever answered."""
    endless: bool = False
    """The body never ends."""
    broken: bool = False
    """The connection is closed before an answer."""


@dataclass(frozen=True)
class Got:
    """A request as it came."""

    target: str
    headers: dict[str, str]
    body: bytes
    reply: Reply

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = orjson.loads(self.body)
        return value

    @property
    def data(self) -> dict[str, Any]:
        value: dict[str, Any] = self.json["data"]
        return value

    def verified(self, secret: str) -> Any:
        """The payload, if the vendor's own library accepts who signed it."""
        return Webhook(secret).verify(self.body, self.headers)

    def is_signed(self, secret: str) -> bool:
        """The same where the plane's clock was moved: the library looks at its own."""
        at = datetime.fromtimestamp(int(self.headers["webhook-timestamp"]), UTC)
        signature = Webhook(secret).sign(self.headers["webhook-id"], at, self.body.decode())
        return signature in self.headers["webhook-signature"].split(" ")


class Receiver:
    def __init__(self) -> None:
        self.got: list[Got] = []
        self.replies: list[Reply] = []
        """What is answered to the next requests; after them `default`."""
        self.default = Reply()
        self.port = 0
        self.scheme = "http"
        self.connections = 0
        self._open: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}/hook?to=cortex"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open[asyncio.current_task()] = writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            reply = self.replies.pop(0) if self.replies else self.default
            self.got.append(Got(head[0].split(" ")[1], headers, body, reply))
            await self._answer(reader, writer, reply)
        writer.close()

    async def hang_up(self) -> None:
        """Whoever is still being answered is not, any more."""
        tasks = dict(self._open)
        for writer in tasks.values():
            writer.transport.abort()
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
        if reply.broken:
            return
        if reply.silent:
            await reader.read()
            return
        length = {} if reply.endless else {"Content-Length": str(len(reply.body))}
        lines = "".join(f"{k}: {v}\r\n" for k, v in (reply.headers | length).items())
        writer.write(f"HTTP/1.1 {reply.status} Said\r\n{lines}\r\n".encode() + reply.body)
        if reply.endless:
            await writer.drain()
            await reader.read()
        await writer.drain()


async def nowhere(host: str, port: int) -> Sequence[str]:
    """A resolver that knows no name, so that nothing in a test asks one outside of it."""
    raise OSError(-2, "Name or service not known")


@contextlib.asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """On loopback, on a free port, until the block ends."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    receiver.scheme = "https" if tls else "http"
    try:
        yield receiver
    finally:
        server.close()
        await receiver.hang_up()


@functools.cache
def certificate(name: str) -> bytes:
    """A key and a certificate for this name, signed by itself, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


def certified(name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for this name, and a client's that trusts it."""
    with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
        pem.write(certificate(name))
        pem.flush()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(pem.name)
        return server, ssl.create_default_context(cafile=pem.name)
