"""A raw TCP or TLS server that answers every connection with given bytes."""

import asyncio
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class WireServer:
    port: int
    answer: bytes
    script: list[bytes] = field(default_factory=list)
    """Answers for the next connections, in order; all later connections get `answer`."""
    connects: int = 0
    requests: list[bytes] = field(default_factory=list)
    """The request lines and headers."""
    bodies: list[bytes] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    """The server names (SNI) that the clients sent in the TLS handshake."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            # closing a connection with unread data would reset it and discard the answer
            self.bodies.append(await reader.readexactly(_content_length(self.requests[-1])))
            writer.write(self.script.pop(0) if self.script else self.answer)
            await writer.drain()
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@asynccontextmanager
async def running_wire_server(answer: bytes = b"", tls: ssl.SSLContext | None = None) -> AsyncIterator[WireServer]:
    """Run the server in the test's event loop."""
    server = WireServer(0, answer)
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: server.names.append(name)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


def _content_length(head: bytes) -> int:
    header = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    return int(header[1]) if header else 0


def http_response(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """Return an HTTP response without a length; it ends with the connection."""
    lines = [f"HTTP/1.1 {status}", "Connection: close", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate: trusting it means trusting this server only."""

    pem: str
    path: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.path)
        return context


def create_certificate(host: str, folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test server")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([_alternative_name(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / f"{host.replace(':', '-')}.pem"
    path.write_bytes(pem + key.private_bytes(encoding, private, serialization.NoEncryption()))
    return Certificate(pem.decode(), path)


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
