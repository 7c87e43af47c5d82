"""User profiles, and the models that the server lists."""

from typing import Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules
from tests.conformance.sdk.workshop import Workshop


async def create(asked: Asked, at: Workshop) -> None:
    """The tests state everything in all forms at once; a request has the form that its header names."""
    if asked.body and "user-profiles-2026-08-18" in asked.headers.get("anthropic-beta", ""):
        asked.body.pop("external_user_details", None)


async def update(asked: Asked, at: Workshop) -> None:
    """A user profile to change, by a request of one form."""
    await profile(asked, at)
    await create(asked, at)


async def profile(asked: Asked, at: Workshop) -> None:
    """A user profile to look at, to change, to delete or to enrol."""
    asked.params["user_profile_id"] = (await at.user_profile())["id"]


async def listed(asked: Asked, at: Workshop) -> None:
    """Two user profiles."""
    for _ in range(2):
        await at.user_profile()


async def model(asked: Asked, at: Workshop) -> None:
    """A model that the server knows."""
    asked.params["model_id"] = await at.known_model()


async def models(asked: Asked, at: Workshop) -> None:
    """A place in the list; a page lies behind one item or before one, not both."""
    if asked.has("after_id"):
        asked.put("after_id", await at.known_model())
        asked.drop("before_id")


_ONE: Final = "/v1/user_profiles/{user_profile_id}"

RULES: Final[Rules] = {
    "POST /v1/user_profiles": create,
    "GET /v1/user_profiles": listed,
    f"GET {_ONE}": profile,
    f"POST {_ONE}": update,
    f"DELETE {_ONE}": profile,
    f"POST {_ONE}/enrollment_url": profile,
    f"POST {_ONE}/action_urls": profile,
    "GET /v1/models": models,
    "GET /v1/models/{model_id}": model,
}
