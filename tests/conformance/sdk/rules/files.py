"""Files and skills."""

from typing import Final

from tests.conformance.sdk import uploads
from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules, as_it_is
from tests.conformance.sdk.workshop import Workshop


async def file(asked: Asked, at: Workshop) -> None:
    """A file to look at or to delete."""
    asked.params["file_id"] = (await at.file())["id"]


async def listed_files(asked: Asked, at: Workshop) -> None:
    """Two files, asked for by id where the request does so.

    Ids exclude a limit and a cursor, and a session's scope holds what the session made (contract 18).
    """
    made = [(await at.file())["id"] for _ in range(2)]
    if asked.has("ids[]"):
        asked.put("ids[]", made[0])
        asked.drop("limit", "page")
    if asked.has("scope_id"):
        asked.put("scope_id", (await at.session())["id"])


async def create_skill(asked: Asked, at: Workshop) -> None:
    """A form with a real skill in it: the tests send a few bytes."""
    name = uploads.skill_name()
    display_name = name if b'name="display_name"' in asked.content else None
    asked.write_over(*uploads.skill(name, display_name=display_name))


async def skill(asked: Asked, at: Workshop) -> None:
    """A skill to look at or to delete."""
    asked.params["skill_id"] = (await at.skill())["id"]


async def listed_skills(asked: Asked, at: Workshop) -> None:
    """Two skills of one's own."""
    for _ in range(2):
        await at.skill()
    if asked.has("source"):
        asked.put("source", "custom")


async def create_version(asked: Asked, at: Workshop) -> None:
    """A skill, and a form with a further version of it: it keeps the name."""
    name = uploads.skill_name()
    asked.params["skill_id"] = (await at.skill(name))["id"]
    asked.write_over(*uploads.skill(name))


async def version(asked: Asked, at: Workshop) -> None:
    """A version of a skill to look at or to delete."""
    await skill(asked, at)
    asked.params["version"] = (await at.skill_version(asked.params["skill_id"]))["id"]


async def superfluous_version(asked: Asked, at: Workshop) -> None:
    """A version to delete: a skill keeps one, so it has another."""
    await listed_versions(asked, at)
    asked.params["version"] = (await at.skill_version(asked.params["skill_id"]))["id"]


async def listed_versions(asked: Asked, at: Workshop) -> None:
    """A skill of two versions."""
    name = uploads.skill_name()
    asked.params["skill_id"] = (await at.skill(name))["id"]
    await at.api.upload(f"/v1/skills/{asked.params['skill_id']}/versions", *uploads.skill(name))


_SKILL: Final = "/v1/skills/{skill_id}"
_VERSION: Final = _SKILL + "/versions/{version}"

RULES: Final[Rules] = {
    "POST /v1/files": as_it_is,
    "GET /v1/files": listed_files,
    "GET /v1/files/{file_id}": file,
    "DELETE /v1/files/{file_id}": file,
    "GET /v1/files/{file_id}/content": file,
    "POST /v1/skills": create_skill,
    "GET /v1/skills": listed_skills,
    f"GET {_SKILL}": skill,
    f"DELETE {_SKILL}": skill,
    f"POST {_SKILL}/versions": create_version,
    f"GET {_SKILL}/versions": listed_versions,
    f"GET {_VERSION}": version,
    f"DELETE {_VERSION}": superfluous_version,
    f"GET {_VERSION}/content": version,
}
