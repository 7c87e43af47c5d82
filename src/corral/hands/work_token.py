"""The token of a work item: made at each poll, kept as a hash, carried in the item's ``secret``."""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from typing import Final

import msgspec

PREFIX: Final = "corral_wt_"
TokenHash = bytes


def token_hash(token: str) -> TokenHash:
    """The SHA-256 by which a token is known; the token itself is stored nowhere."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def new_secret() -> tuple[str, TokenHash]:
    """A fresh ``secret`` (URL-safe base64 of JSON with the key ``sessions_token``) and its token's hash."""
    token = PREFIX + secrets.token_urlsafe(32)
    payload = msgspec.json.encode({"sessions_token": token})
    return urlsafe_b64encode(payload).decode().rstrip("="), token_hash(token)
