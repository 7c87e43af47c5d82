"""Ids of everything that the API names (contract section 2.4).

An id is a prefix that tells the family, the digits ``01``, and 22 characters: 48 bits of
milliseconds since 1970, then 80 random bits, in base 58. Ids made later sort later (within a
millisecond the order is random), so index pages stay warm. Clients treat them as opaque.
"""

import secrets
import time
from typing import Final, Literal

Prefix = Literal[
    "agent",
    "apikey",
    "audit",
    "blob",
    "depl",
    "drm",
    "drun",
    "ekey",
    "env",
    "file",
    "mem",
    "memstore",
    "memver",
    "outc",
    "pkey",
    "req",
    "sesn",
    "sesrsc",
    "sevt",
    "skill",
    "skver",
    "sthr",
    "uprof",
    "vcrd",
    "vlt",
    "whe",
    "whep",
    "work",
]

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_LENGTH: Final = 22


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``sesn_01…``; unique without coordination (80 random bits per millisecond)."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    digits: list[str] = []
    for _ in range(_LENGTH):
        number, rest = divmod(number, 58)
        digits.append(_ALPHABET[rest])
    return f"{prefix}_01{''.join(reversed(digits))}"
