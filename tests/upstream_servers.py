"""HTTP servers on the loopback that stand for the rest of the world, with an authority of their own.

They speak through h11, tell what they were asked, and answer by the path.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import h11
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class TestAuthority:
    """Signs certificates for the servers of a test."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._certificate = self._signed(name, self._key, [], ca=True)
        self.bundle = folder / "test-authority.pem"
        self.bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *hosts: str, expired: bool = False) -> ssl.SSLContext:
        """What a server of these hosts shows."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        certificate = self._signed(subject, key, hosts, expired=expired)
        file = self._folder / f"{hosts[0].replace('*', 'any')}-{expired}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        hosts: Sequence[str],
        *,
        ca: bool = False,
        expired: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        issuer = subject if ca else self._certificate.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now + timedelta(days=-1 if expired else 3))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass
class Asked:
    """A request as a server has got it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)


Answer = tuple[int, list[tuple[str, str]], Sequence[bytes]]
Respond = Callable[[Asked], Awaitable[Answer]]


@dataclass
class Upstream:
    """A running server. `connections` counts those that were accepted."""

    port: int
    asked: list[Asked] = field(default_factory=list[Asked])
    connections: int = 0


async def telling(asked: Asked) -> Answer:
    """Answers with what was asked, as JSON; some paths answer otherwise."""
    match asked.path.partition("?")[0]:
        case "/204":
            return 204, [], []
        case "/304":
            return 304, [("etag", '"x"')], []
        case "/chunked":
            return 200, [("transfer-encoding", "chunked")], [b"one,", b"two,", b"three"]
        case "/until-closed":
            return 200, [("connection", "close")], [b"to ", b"the end"]
        case "/redirect":
            return 302, [("location", "https://elsewhere.example/"), ("content-length", "0")], []
        case "/hop":
            return (
                200,
                [("connection", "x-secret-hop"), ("x-secret-hop", "1"), ("content-length", "2")],
                [b"ok"],
            )
        case _:
            told: dict[str, Any] = {
                "method": asked.method,
                "path": asked.path,
                "headers": asked.headers,
                "body": asked.body.decode("latin-1"),
            }
            text = msgspec.json.encode(told)
            return 200, [("content-length", str(len(text))), ("content-type", "application/json")], [text]


@asynccontextmanager
async def upstream(
    context: ssl.SSLContext | None = None,
    *,
    respond: Respond = telling,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[Upstream]:
    """A server, under TLS if there is a context."""
    running = Upstream(0)
    tasks = set[asyncio.Task[None]]()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _converse(reader, writer, running, respond)
        except (OSError, h11.ProtocolError):
            return
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.connections += 1
        task = asyncio.create_task(converse(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, port, ssl=context)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, running: Upstream, respond: Respond
) -> None:
    connection = h11.Connection(h11.SERVER)
    while True:
        asked: Asked | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    writer.write(connection.send(go_on) or b"")
                connection.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                headers = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
                asked = Asked(event.method.decode(), event.target.decode(), headers)
            elif isinstance(event, h11.Data):
                assert asked is not None
                asked.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert asked is not None
        running.asked.append(asked)
        status, headers_out, pieces = await respond(asked)
        writer.write(connection.send(h11.Response(status_code=status, headers=headers_out)) or b"")
        body: list[bytes] = [] if asked.method == "HEAD" else list(pieces)
        for piece in body:
            writer.write(connection.send(h11.Data(data=piece)) or b"")
            await writer.drain()
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        if connection.our_state is not h11.DONE:
            return
        connection.start_next_cycle()
