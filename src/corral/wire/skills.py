"""Skills on the wire (contract section 17): the objects, and how agents and sessions refer to skills."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from corral.wire.archives import ArchiveLimits
from corral.wire.errors import InvalidRequest
from corral.wire.text import is_clean

LATEST: Final = "latest"
"""Stands for the newest version, wherever a version is named."""
SKILLS: Final = 500
"""How many skills a session may have, over all its agents."""
ENTRY_FILE: Final = "SKILL.md"
DISPLAY_NAME_LENGTH: Final = 255
LIMITS: Final = ArchiveLimits(entries=1000, total_bytes=30 * 1024 * 1024)
"""What one version of a skill may hold. 30 MB are documented, the number of files is not."""

CLOUD_FOLDER: Final = "/workspace/skills"
"""Where a cloud sandbox shows a session's skills; elsewhere it is ``skills`` in the working directory."""


class SkillSource(msgspec.Struct, kw_only=True):
    """Where a skill comes from. On this server all are ``custom``."""

    type: Literal["custom", "anthropic", "anthropic_example", "plugin"]


class Skill(msgspec.Struct, tag="skill", kw_only=True):
    """The skill as the API shows it."""

    id: str
    display_name: str
    latest_version_id: str
    source: SkillSource
    created_at: str
    updated_at: str


class SkillVersion(msgspec.Struct, tag="skill_version", kw_only=True):
    """A version of a skill as the API shows it. ``name`` is the same for all versions of a skill."""

    id: str
    skill_id: str
    name: str
    description: str
    created_at: str


class SkillDeleted(msgspec.Struct, tag="skill_deleted", kw_only=True):
    """What the deletion of a skill is answered with."""

    id: str


class SkillVersionDeleted(msgspec.Struct, tag="skill_version_deleted", kw_only=True):
    """What the deletion of a version is answered with."""

    id: str


class SkillReference(msgspec.Struct, frozen=True, kw_only=True):
    """A skill of an agent. ``skill_id`` is the name where the type is ``anthropic``, else the id."""

    type: Literal["anthropic", "custom"]
    skill_id: str
    version: str


class SessionSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as a session has it: what its version said when the session was made."""

    version_id: str
    name: str
    description: str


def check_display_name(name: str) -> str:
    """A skill's label: one line, at most 255 characters.

    Raises:
        InvalidRequest: it is empty, too long, or holds control characters.
    """
    if not name.strip() or len(name) > DISPLAY_NAME_LENGTH:
        raise InvalidRequest(f"display_name: must have 1 to {DISPLAY_NAME_LENGTH} characters")
    if not is_clean(name) or any(unicodedata.category(character) == "Cc" for character in name):
        raise InvalidRequest("display_name: must be a single line without control characters")
    return name


def references(listed: Sequence[SkillReference], path: str) -> Iterator[tuple[str, SkillReference]]:
    """Each reference of a list, with its path.

    Raises:
        InvalidRequest: there are too many, or one skill stands there twice.
    """
    if len(listed) > SKILLS:
        raise InvalidRequest(f"{path}: at most {SKILLS} skills")
    seen: dict[tuple[str, str], str] = {}
    for index, reference in enumerate(listed):
        where = f"{path}[{index}]"
        first = seen.setdefault((reference.type, reference.skill_id), where)
        if first != where:
            raise InvalidRequest(
                f'{where}.skill_id: "{reference.skill_id}" is given more than once (the first is {first})'
            )
        yield where, reference
