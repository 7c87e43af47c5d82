"""Files on the wire: their names and media types, and the object that the API shows (contract section 18)."""

import re
from mimetypes import MimeTypes
from typing import Final

import msgspec

from corral.wire.errors import InvalidRequest
from corral.wire.media import image_type

EXPIRES_LEAST: Final = 3600
EXPIRES_MOST: Final = 7_776_000
FILENAME_LENGTH: Final = 255
IDS: Final = 100
UNNAMED: Final = "unnamed"
UNKNOWN_TYPE: Final = "application/octet-stream"

_MIME: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}")
_SEPARATORS: Final = re.compile(r"[/\\]")
# C0 and C1 controls: they have no place in a name, and would break out of a header or a terminal line.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
# What agents and their users handle and Python's own table, depending on its version, has not.
_MORE: Final = {
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".jsonl": "application/jsonl",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
    ".toml": "application/toml",
    ".ts": "text/x-typescript",
    ".webp": "image/webp",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


def _table() -> MimeTypes:
    """The table that comes with Python, not this machine's: a type must not depend on the server."""
    table = MimeTypes()
    for extension, mime in _MORE.items():
        table.add_type(mime, extension)
    return table


_TABLE: Final = _table()


class FileScope(msgspec.Struct, tag="session", kw_only=True):
    """The session that a file belongs to."""

    id: str


class File(msgspec.Struct, tag="file", kw_only=True):
    """The file as the API shows it."""

    id: str
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    downloadable: bool
    expires_at: str | None
    scope: FileScope | None


class SessionOutput(msgspec.Struct, frozen=True):
    """A file that a session's agent has put out, by its path below /mnt/session/outputs. Never shown."""

    path: str
    file_id: str
    mime_type: str
    size_bytes: int


class FileDeleted(msgspec.Struct, tag="file_deleted", kw_only=True):
    """What a deletion is answered with."""

    id: str


def mime_type(declared: str | None, filename: str, head: bytes) -> str:
    """The media type of a file: as declared, else by its name, else by its first bytes.

    What is declared as ``application/octet-stream``, or is no media type at all, counts as not declared.
    """
    plain = (declared or "").partition(";")[0].strip().lower()
    if _MIME.fullmatch(plain) and plain != UNKNOWN_TYPE:
        return plain
    by_name, _ = _TABLE.guess_type(filename)
    if by_name is not None:
        return by_name
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    return image_type(head) or UNKNOWN_TYPE


def stored_name(sent: str | None) -> str:
    """The last component of a file name as it was sent; empty where there is none.

    Raises:
        InvalidRequest: it is too long, or holds control characters.
    """
    name = _SEPARATORS.split(sent or "")[-1].strip()
    if name in (".", ".."):
        return ""
    if len(name) > FILENAME_LENGTH:
        raise InvalidRequest(f"file: the filename must have at most {FILENAME_LENGTH} characters")
    if _CONTROLS.search(name):
        raise InvalidRequest("file: the filename must not hold control characters")
    return name


def unnamed(mime: str) -> str:
    """The name of a file that came without one: ``unnamed`` and the extension of its media type."""
    return UNNAMED + (_TABLE.guess_extension(mime) or "")


def expiry(text: str) -> int:
    """The form field ``expires_in_seconds`` as a number of seconds.

    Raises:
        InvalidRequest: it is no whole number, or out of bounds.
    """
    if not re.fullmatch(r"[0-9]{1,12}", text.strip()):
        raise InvalidRequest("expires_in_seconds: Input should be a valid integer")
    seconds = int(text)
    if not EXPIRES_LEAST <= seconds <= EXPIRES_MOST:
        raise InvalidRequest(f"expires_in_seconds: must be between {EXPIRES_LEAST} and {EXPIRES_MOST}")
    return seconds
