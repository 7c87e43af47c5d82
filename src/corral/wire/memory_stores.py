"""Memory stores on the wire (contract section 16.1)."""

import re
import unicodedata
from collections.abc import Collection
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Metadata, MetadataPatch, Request

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Description = Annotated[str, Meta(max_length=1024)]
Access: TypeAlias = Literal["read_write", "read_only"]

FOLDER: Final = "/mnt/memory"
"""Below which a session finds its stores."""
_NAME_BYTES: Final = 255
_NOT_IN_SLUGS: Final = re.compile(r"[^a-z0-9]+")


class CreateMemoryStore(Request):
    """The body of ``POST /v1/memory_stores``."""

    name: Name
    description: Description | None = None
    metadata: Metadata | None = None

    def check(self) -> None:
        """Check the name's characters."""
        check_name(self.name)


class UpdateMemoryStore(Request):
    """The body of ``POST /v1/memory_stores/{id}``: an absent field stays, a null description is cleared."""

    name: Name | None = None
    description: Description | UnsetType | None = UNSET
    metadata: MetadataPatch | None = None

    def check(self) -> None:
        """Check the name's characters."""
        if self.name is not None:
            check_name(self.name)


class MemoryStore(msgspec.Struct, tag="memory_store", kw_only=True):
    """The memory store as the API shows it. ``updated_at`` does not move with its memories."""

    id: str
    name: str
    description: str
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


class MountedStore(msgspec.Struct, kw_only=True):
    """A store as a session has it: name and description are those of when the session was made."""

    memory_store_id: str
    access: Access
    instructions: str | None
    name: str
    description: str
    mount_path: str


def mount_path(name: str, taken: Collection[str]) -> str:
    """The folder of a store: its name in lower case, whatever is no ASCII letter or digit become hyphens.

    Where the path is `taken` by another store of the session, ``-2`` is appended, or the next number that is
    free (contract section 28 leaves this open).
    """
    slug = _NOT_IN_SLUGS.sub("-", name.lower())
    path, number = f"{FOLDER}/{slug[:_NAME_BYTES]}", 2
    while path in taken:
        suffix = f"-{number}"
        path, number = f"{FOLDER}/{slug[: _NAME_BYTES - len(suffix)]}{suffix}", number + 1
    return path


def check_name(name: str) -> None:
    """A name has no control characters, since it is shown to agents in one line.

    Raises:
        InvalidRequest: it has one.
    """
    for index, character in enumerate(name):
        if unicodedata.category(character) == "Cc":
            raise InvalidRequest(f"name: holds a control character (U+{ord(character):04X} at {index})")
