"""Text of an agent or a tool, made safe to print: nothing in it can move the cursor or hide what is there.

A terminal obeys control characters wherever they come from. What a person is asked to approve must be what
runs, so controls, and the marks that reverse the direction of writing, are shown as escapes instead.
"""

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """The text with line breaks and tabs kept, and every other control character shown as an escape."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
