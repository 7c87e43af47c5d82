"""Multipart forms for what tests upload: a file, and a skill that is one."""

import secrets
from collections.abc import Iterable
from typing import Final

Part = tuple[str, str | None, bytes]
"""A field's name, its file name if it is a file, and its content."""

_NAME_BYTES: Final = 4


def form(parts: Iterable[Part]) -> tuple[bytes, str]:
    """The body of a form and its content type."""
    boundary = secrets.token_hex(16)
    lines: list[bytes] = []
    for name, filename, content in parts:
        disposition = f'form-data; name="{name}"'
        if filename is not None:
            disposition += f'; filename="{filename}"\r\nContent-Type: application/octet-stream'
        lines.append(
            f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"
        )
    lines.append(f"--{boundary}--\r\n".encode())
    return b"".join(lines), f"multipart/form-data; boundary={boundary}"


def text_file() -> tuple[bytes, str]:
    """A form that uploads a short text."""
    return form([("file", "receipt.txt", b"One coffee, 3 EUR\n")])


def skill_name() -> str:
    """A name that no other skill has."""
    return f"receipts-{secrets.token_hex(_NAME_BYTES)}"


def skill(name: str, *, display_name: str | None = None) -> tuple[bytes, str]:
    """A form that uploads a valid skill of two files."""
    told = f"---\nname: {name}\ndescription: Reads receipts and adds them up.\n---\n\nRead, then add up.\n"
    parts: list[Part] = [
        ("files[]", f"{name}/SKILL.md", told.encode()),
        ("files[]", f"{name}/scripts/add.py", b"print(sum(map(float, input().split())))\n"),
    ]
    if display_name is not None:
        parts.insert(0, ("display_name", None, display_name.encode()))
    return form(parts)
