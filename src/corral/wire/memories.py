"""Memories and their versions on the wire: paths, contents, preconditions (contract sections 16.2 and 16.3).

A memory's path is that of a file below the store's folder, so what could not be one is refused here, and a
path cannot lie below another memory's. A text is kept byte for byte: its SHA-256 is what clients compare.
"""

import hashlib
import unicodedata
from typing import ClassVar, Final, Literal, TypeAlias

import msgspec

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Request

PATH_BYTES: Final = 1024
SEGMENTS: Final = 20
CONTENT_BYTES: Final = 102_400

View: TypeAlias = Literal["basic", "full"]
Operation: TypeAlias = Literal["created", "modified", "deleted"]
VIEWS: Final[tuple[View, ...]] = ("basic", "full")
OPERATIONS: Final[tuple[Operation, ...]] = ("created", "modified", "deleted")

_SHA256_DIGITS: Final = frozenset("0123456789abcdef")
# Control and format characters, and what ends a line or a paragraph.
_UNFIT: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class CreateMemory(Request):
    """The body of ``POST /v1/memory_stores/{id}/memories``."""

    exact_text: ClassVar[bool] = True

    path: str
    content: str | None

    def check(self) -> None:
        """Check the path's form and the content's size."""
        check_path(self.path)
        if self.content is None:
            raise InvalidRequest('content: Input should be a valid string; pass "" for an empty memory')
        check_content(self.content)


class Precondition(Request, tag="content_sha256"):
    """What a memory's content must be for an update to apply."""

    content_sha256: str


class UpdateMemory(Request):
    """The body of ``POST /v1/memory_stores/{id}/memories/{id}``: an absent or null field stays."""

    exact_text: ClassVar[bool] = True

    path: str | None = None
    content: str | None = None
    precondition: Precondition | None = None

    def check(self) -> None:
        """Check the path's form, the content's size and the precondition's hash."""
        if self.path is not None:
            check_path(self.path)
        if self.content is not None:
            check_content(self.content)
        if self.precondition is not None:
            check_sha256(self.precondition.content_sha256, "precondition.content_sha256")


class Memory(msgspec.Struct, tag="memory", kw_only=True):
    """The memory as the API shows it; ``content`` is null in the ``basic`` view."""

    id: str
    memory_store_id: str
    memory_version_id: str
    path: str
    content: str | None
    content_size_bytes: int
    content_sha256: str
    created_at: str
    updated_at: str


class MemoryPrefix(msgspec.Struct, tag="memory_prefix", kw_only=True):
    """A folder in a list of depth 1: it stands for the memories below it. Its path ends with ``/``."""

    path: str


class SessionActor(msgspec.Struct, tag="session_actor", frozen=True):
    """The agent of a session."""

    session_id: str


class ApiActor(msgspec.Struct, tag="api_actor", frozen=True):
    """A caller of the API, by the key that it used."""

    api_key_id: str


Actor: TypeAlias = SessionActor | ApiActor


class MemoryVersion(msgspec.Struct, tag="memory_version", kw_only=True):
    """One change of a memory as the API shows it. Its path is null if and only if it was redacted."""

    id: str
    memory_id: str
    memory_store_id: str
    operation: Operation
    path: str | None
    content: str | None
    content_size_bytes: int | None
    content_sha256: str | None
    created_at: str
    created_by: Actor | None
    redacted_at: str | None
    redacted_by: Actor | None


def check_path(path: str, field: str = "path") -> None:
    """A memory's path: ``/`` and 1 to 20 segments, at most 1,024 bytes, in Normalization Form C.

    Raises:
        InvalidRequest: it is no such path; the message says why.
    """
    if not path.startswith("/"):
        raise InvalidRequest(f"{field}: must start with /")
    if len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES:
        raise InvalidRequest(f"{field}: must have at most {PATH_BYTES} bytes")
    segments = path[1:].split("/")
    if "" in segments:
        raise InvalidRequest(f"{field}: must not have an empty segment (a / at the end, or two in a row)")
    if "." in segments or ".." in segments:
        raise InvalidRequest(f"{field}: must not have a segment . or ..")
    if len(segments) > SEGMENTS:
        raise InvalidRequest(f"{field}: must have at most {SEGMENTS} segments")
    for character in path:
        if unicodedata.category(character) in _UNFIT:
            raise InvalidRequest(
                f"{field}: holds a control or format character or a line separator (U+{ord(character):04X})"
            )
    if not unicodedata.is_normalized("NFC", path):
        raise InvalidRequest(f"{field}: must be in Unicode Normalization Form C")


def check_prefix(prefix: str) -> None:
    """The prefix of a list: ``/``, or a path with a ``/`` at its end, so that it matches whole segments.

    Raises:
        InvalidRequest: it is no such prefix.
    """
    if not prefix.startswith("/") or not prefix.endswith("/"):
        raise InvalidRequest("path_prefix: must start and end with /")
    if prefix != "/":
        check_path(prefix[:-1], "path_prefix")


def check_content(content: str) -> None:
    """A memory's text has at most 102,400 bytes of UTF-8.

    Raises:
        InvalidRequest: it has more.
    """
    size = len(content.encode("utf-8"))
    if size > CONTENT_BYTES:
        raise InvalidRequest(f"content: must have at most {CONTENT_BYTES} bytes, got {size}")


def check_sha256(text: str, field: str) -> None:
    """A hash as clients send it: 64 lowercase hexadecimal digits.

    Raises:
        InvalidRequest: it is something else.
    """
    if len(text) != 64 or not _SHA256_DIGITS.issuperset(text):
        raise InvalidRequest(f"{field}: must be 64 lowercase hexadecimal characters")


def sha256_of(content: str) -> str:
    """The hash of a text's UTF-8 bytes, as the API shows it."""
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def ancestors(path: str) -> list[str]:
    """The paths above a path, nearest first: of ``/a/b/c`` these are ``/a/b`` and ``/a``."""
    found: list[str] = []
    while path := path.rpartition("/")[0]:
        found.append(path)
    return found


def after_folder(prefix: str) -> str:
    """The first string behind everything that starts with a prefix ending in ``/``, in the order of bytes."""
    return prefix[:-1] + "0"  # "0" is the character behind "/"
