"""Who an agent is, for MCP servers: a short-lived signed token (JWT, ES256) with each request to one.

The signing key is derived from the vault's private key, so that gateways alone can sign and there is no other
key to keep. It changes with that one; `public_keys` has the former ones too, for as long as they are at hand.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwt
from joserfc.jwk import ECKey

from corral.vault.grants import GrantedSession
from corral.vault.keys import PrivateKey
from corral.wire.ids import new_id
from corral.wire.server_urls import normalised

HEADER: Final = "corral-agent-identity"
LIFE_SECONDS: Final = 300

_ALGORITHM: Final = "ES256"
_PURPOSE: Final = b"agent identity"
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class Signer:
    """Signs for one issuer with the key that belongs to the vault's present one."""

    def __init__(self, issuer: str, key: PrivateKey) -> None:
        self._issuer = issuer
        self._key = _signing_key(key)

    def token(self, session: GrantedSession, url: str) -> str:
        """What tells the MCP server at `url` which agent asks, in which session; good for 5 minutes."""
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "sub": session.agent_id,
            "aud": normalised(url),
            "iat": now,
            "exp": now + LIFE_SECONDS,
            "jti": new_id("req"),
            "agent_name": session.agent["name"],
            "session_id": session.session_id,
            "environment_id": session.environment_id,
        }
        header = {"alg": _ALGORITHM, "kid": self._key.kid, "typ": "JWT"}
        return jwt.encode(header, claims, self._key, algorithms=[_ALGORITHM])


def public_keys(keys: Sequence[PrivateKey]) -> dict[str, Any]:
    """What checks the tokens: a JSON Web Key Set, without anything secret."""
    shown = list[dict[str, Any]]()
    for key in keys:
        signing = _signing_key(key)
        public: dict[str, Any] = dict(signing.as_dict(private=False))
        shown.append({**public, "kid": signing.kid, "alg": _ALGORITHM, "use": "sig"})
    return {"keys": shown}


def _signing_key(key: PrivateKey) -> ECKey:
    # Longer than the order by 64 bits, so that no scalar is likelier than another.
    scalar = int.from_bytes(key.derive(_PURPOSE, 40)) % (_ORDER - 1) + 1
    private = ec.derive_private_key(scalar, ec.SECP256R1())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ECKey.import_key(pem, {"kid": key.public.id})
