"""Routes of the models that agents can name. They page by ids, as the Messages API does."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PageOf, choices, limit, text
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.model_info import LIFECYCLES, LISTED, ModelInfo

_LISTED_AT_ONCE: Final = 1000


async def list_models(call: Call) -> ASGIApp:
    """``GET /v1/models``: the newest first, retired ones only where they are asked for."""
    query = call.query
    most = query.limit(default=20, most=_LISTED_AT_ONCE)
    stages = query.values("lifecycle", LIFECYCLES, most=len(LIFECYCLES)) or LISTED
    after, before = query.text("after_id"), query.text("before_id")
    every = await call.services.models.all()
    models = _between(every, after, before)
    models = [model for model in models if model.lifecycle in stages]
    page = models[-most:] if before is not None and after is None else models[:most]
    return answer(
        {
            "data": page,
            "has_more": len(models) > len(page),
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
        }
    )


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/models/{model_id}``."""
    model_id = "/".join(call.params.values())  # a gateway's ids may have a slash in them
    model = await call.services.models.find(model_id)
    if model is None:
        raise NotFound(f"model: {model_id}")
    return answer(model)


def _between(models: list[ModelInfo], after: str | None, before: str | None) -> list[ModelInfo]:
    places = {model.id: place for place, model in enumerate(models)}
    for name, model_id in (("after_id", after), ("before_id", before)):
        if model_id is not None and model_id not in places:
            raise InvalidRequest(f"{name}: no model {model_id} in the list")
    start = 0 if after is None else places[after] + 1
    end = len(models) if before is None else places[before]
    return models[start:end]


ROUTES = (
    Route(
        "GET",
        "/v1/models",
        APPLICATION,
        list_models,
        "List the models that agents can name",
        query=(
            limit(most=_LISTED_AT_ONCE),
            text("after_id", "The page after this model."),
            text("before_id", "The page before this model."),
            choices("lifecycle", "Only models in these stages.", LIFECYCLES, most=len(LIFECYCLES)),
        ),
        gives=PageOf(ModelInfo, cursors=("first_id", "last_id"), flags=("has_more",)),
    ),
    Route("GET", "/v1/models/{model_id}", APPLICATION, retrieve, "Look at a model", gives=ModelInfo),
    Route(
        "GET",
        "/v1/models/{vendor}/{model_id}",
        APPLICATION,
        retrieve,
        "Look at a model whose id has a slash in it",
        gives=ModelInfo,
    ),
)
