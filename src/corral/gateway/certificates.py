"""The deployment's own certificate authority: it lets the gateway read what sandboxes send over TLS.

Its key is made by the first gateway, sealed like every secret, and opened by gateways alone; sandboxes get
the certificate. A leaf is made for each host that is connected to, and kept for as long as it is good for.
"""

import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.store.database import Database
from corral.vault.keys import PublicKey
from corral.vault.sealing import CannotOpen, KeyRing, Place, open_sealed, seal
from corral.wire.secret import Secret

_PLACE: Final = Place("gateway_authority", "secret_value")
_AUTHORITY_DAYS: Final = 3650
_LEAF_DAYS: Final = 30
_RENEWED_DAYS: Final = 7
# Clocks of sandboxes and workers may be behind.
_BACKDATED: Final = timedelta(hours=24)
_KEPT_LEAVES: Final = 1024

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Authority:
    """Signs certificates for hosts. Not to be printed or pickled: it holds the key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.__key = key
        self._certificate = certificate
        self.certificate: Final = certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
        # One key for all leaves of this process; it dies with it.
        self.__leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()

    @classmethod
    def generate(cls, now: datetime | None = None) -> Self:
        """A fresh authority, which may sign for hosts but for no other authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        moment = now or datetime.now(UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Corral egress gateway")])
        usage = x509.KeyUsage(
            key_cert_sign=True,
            crl_sign=True,
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - _BACKDATED)
            .not_valid_after(moment + timedelta(days=_AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def parse(cls, key: Secret, certificate: str) -> Self:
        """The authority of a key and a certificate in PEM; raises ValueError if they are none."""
        loaded = serialization.load_pem_private_key(key.reveal().encode(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is of another kind")
        return cls(loaded, x509.load_pem_x509_certificate(certificate.encode()))

    @property
    def key(self) -> Secret:
        """The key in PEM, to be sealed."""
        return Secret(_pem(self.__key).decode("ascii"))

    def leaf(self, host: str, moment: datetime | None = None) -> ssl.SSLContext:
        """What to show to a client that connects to `host` now. Only HTTP/1.1 is offered."""
        now = moment or datetime.now(UTC)
        kept = self._leaves.get(host)
        if kept is not None and kept[0] > now:
            self._leaves.move_to_end(host)
            return kept[1]
        context = self._context(host, now)
        self._leaves[host] = (now + timedelta(days=_LEAF_DAYS - _RENEWED_DAYS), context)
        self._leaves.move_to_end(host)
        while len(self._leaves) > _KEPT_LEAVES:
            self._leaves.popitem(last=False)
        return context

    def _context(self, host: str, now: datetime) -> ssl.SSLContext:
        certificate = self._sign(host, now).public_bytes(serialization.Encoding.PEM)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.sni_callback = _only(host)
        _load(context, certificate + _pem(self.__leaf_key))
        return context

    def _sign(self, host: str, now: datetime) -> x509.Certificate:
        is_address = _is_address(host)
        name: x509.GeneralName = x509.IPAddress(ip_address(host)) if is_address else x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        ends = min(now + timedelta(days=_LEAF_DAYS), self._certificate.not_valid_after_utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .public_key(self.__leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._certificate.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
            .sign(self.__key, hashes.SHA256())
        )

    def __repr__(self) -> str:
        return "Authority([secret])"

    def __reduce_ex__(self, protocol: object) -> str:
        raise TypeError("an authority cannot be pickled")


async def open_authority(database: Database, keys: KeyRing, sealing: PublicKey) -> Authority:
    """The deployment's authority, which is made where there is none yet.

    One that is sealed for a key that is not at hand can sign nothing more and is replaced: sandboxes that run
    trust the former one until they are started anew.
    """
    row = await database.fetch_one("select certificate, sealed from gateway_authority")
    if row is not None:
        try:
            return Authority.parse(open_sealed(row["sealed"], _PLACE, keys), row["certificate"])
        except CannotOpen as reason:
            _log.warning("the egress authority is replaced", reason=str(reason))
    made = Authority.generate()
    await database.execute(
        "insert into gateway_authority (only_one, certificate, key_id, sealed) values (true, %s, %s, %s)"
        " on conflict (only_one) do update set certificate = excluded.certificate, key_id = excluded.key_id,"
        " sealed = excluded.sealed, created_at = now() where gateway_authority.certificate = %s",
        (made.certificate, sealing.id, seal(made.key, _PLACE, sealing), row["certificate"] if row else ""),
    )
    kept = await database.fetch_one("select certificate, sealed from gateway_authority")
    assert kept is not None
    # Another gateway may have been quicker.
    return Authority.parse(open_sealed(kept["sealed"], _PLACE, keys), kept["certificate"])


def upstream_context(bundle: Path | None = None) -> ssl.SSLContext:
    """How servers are verified: by this machine's certificates, and by those of a bundle too if it is given.

    Raises OSError if the bundle cannot be read.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if bundle is not None:
        context.load_verify_locations(cafile=bundle)
    return context


def _only(host: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    """Ends a handshake that asks for another name; an address is asked for without one."""
    named = None if _is_address(host) else host

    def check(_tls: ssl.SSLObject, asked: str | None, _context: ssl.SSLContext) -> int | None:
        plain = asked.lower().removesuffix(".") if asked else None
        return None if plain in (named, host) else int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)

    return check


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a chain with its key. The library takes files alone; where it can be, this one is in memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("corral-leaf")
        try:
            os.write(descriptor, chain)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="corral-leaf-") as folder:
        file = Path(folder, "leaf.pem")
        file.touch(mode=0o600)
        file.write_bytes(chain)
        context.load_cert_chain(file)
