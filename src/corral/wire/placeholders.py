"""What stands in a sandbox for a secret that it must not have (contract section 15.2).

A placeholder is made from the session and the credential, so that it stays the same when the secret is
replaced, needs no row of its own, and is worth nothing in any other session.
"""

from base64 import b32encode
from hashlib import sha256
from typing import Final

PREFIX: Final = "corral_placeholder_"
LENGTH: Final = len(PREFIX) + 32


def placeholder(session_id: str, credential_id: str) -> str:
    """The placeholder of a credential in a session: always `LENGTH` characters that need no escaping."""
    digest = sha256(f"corral placeholder\0{session_id}\0{credential_id}".encode()).digest()[:20]
    return PREFIX + b32encode(digest).decode("ascii").lower()
