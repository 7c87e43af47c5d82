"""Something outside that webhooks are sent to: a real HTTP or HTTPS server on the loopback."""

import asyncio
import datetime
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from anthropic import Anthropic
from anthropic.types.beta import BetaWebhookEvent
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PATIENCE = 30.0


@dataclass(frozen=True)
class Message:
    """One request as it arrived."""

    headers: dict[str, str]
    body: str
    path: str

    def unwrapped(self, secret: str) -> BetaWebhookEvent:
        """What the official SDK makes of it; raises if the signature is not good."""
        with Anthropic(api_key="none") as client:
            return client.beta.webhooks.unwrap(self.body, headers=self.headers, key=secret)


@dataclass
class Receiver:
    """Takes messages. ``answers`` are given in turn, as (status, headers); after them always 204."""

    base_url: str = ""
    messages: list[Message] = field(default_factory=list[Message])
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list[tuple[int, dict[str, str]]])
    held: asyncio.Event | None = None
    """While set and not yet fired, requests get no answer."""
    at_once: int = 0
    most_at_once: int = 0
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = (await request.body()).decode()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self._more:
            self.messages.append(Message(dict(request.headers), body, path))
            self._more.notify_all()
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.at_once -= 1
        status, headers = self.answers.pop(0) if self.answers else (204, {})
        await Response(status_code=status, headers=headers)(scope, receive, send)

    async def until(self, count: int) -> list[Message]:
        """The messages, once there are so many."""
        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(lambda: len(self.messages) >= count)
        return self.messages


@asynccontextmanager
async def receiving(*, tls: Path | None = None, host: str = "127.0.0.1") -> AsyncGenerator[Receiver]:
    """A receiver that listens; with `tls`, by a certificate of the authority in that folder."""
    receiver = Receiver()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, 0))
    more: dict[str, Any] = {}
    if tls is not None:
        more = {"ssl_certfile": tls / "server.pem", "ssl_keyfile": tls / "server.key"}
    config = uvicorn.Config(
        receiver, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1, **more
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))  # pyright: ignore[reportPrivateUsage]
    scheme = "http" if tls is None else "https"
    name = "localhost" if tls is not None else f"[{host}]" if ":" in host else host
    receiver.base_url = f"{scheme}://{name}:{listener.getsockname()[1]}"
    try:
        yield receiver
    finally:
        if receiver.held is not None:
            receiver.held.set()
        server.should_exit = True
        await task
        listener.close()


def authority(folder: Path, *, names: tuple[str, ...] = ("localhost",)) -> Path:
    """Make a certificate authority (``ca.pem``) and a server's certificate in `folder`; returns it."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    alternatives = [x509.DNSName(name) for name in names]
    server = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]), key.public_key())
        .add_extension(
            x509.SubjectAlternativeName([*alternatives, x509.IPAddress(ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder
