"""Dreams on the wire (contract section 21): jobs that reorganise a memory store after past sessions."""

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Id, Request

SESSIONS: Final = 100
"""Most sessions of one dream."""

DreamStatus: TypeAlias = Literal["pending", "running", "completed", "failed", "canceled"]
STATUSES: Final[frozenset[str]] = frozenset(get_args(DreamStatus))
DreamErrorType: TypeAlias = Literal[
    "timeout",
    "internal_error",
    "memory_store_org_limit_exceeded",
    "input_memory_store_too_large",
    "input_memory_store_unavailable",
    "input_session_unavailable",
]

ModelId = Annotated[str, Meta(min_length=1, max_length=256)]
Instructions = Annotated[str, Meta(min_length=1, max_length=4096)]


class MemoryStoreInput(Request, tag="memory_store"):
    """The store to reorganise."""

    memory_store_id: Id


class SessionsInput(Request, tag="sessions"):
    """The sessions whose transcripts are read."""

    session_ids: Annotated[list[Id], Meta(min_length=1, max_length=SESSIONS)]


DreamInput: TypeAlias = MemoryStoreInput | SessionsInput


class DreamModelParams(Request):
    """A model in its object form. Dreams run at the one speed."""

    id: ModelId
    speed: Literal["standard"] | None = None


class CreateNew(Request, tag="create_new"):
    """The result goes into a new store, which begins as a copy of the input."""


class UpdateExisting(Request, tag="update_existing"):
    """The result goes into the input store."""

    memory_store_id: Id


class CreateDream(Request):
    """The body of ``POST /v1/dreams``."""

    inputs: list[DreamInput]
    model: ModelId | DreamModelParams
    instructions: Instructions | None = None
    output_behavior: CreateNew | UpdateExisting | UnsetType = UNSET

    def check(self) -> None:
        """One store, one list of sessions without repetition, and a result that goes where it may."""
        stores = [entry for entry in self.inputs if isinstance(entry, MemoryStoreInput)]
        if len(stores) != 1 or len(self.inputs) != 2:
            raise InvalidRequest(
                "inputs: needs exactly one memory_store entry and exactly one sessions entry"
            )
        ids = self.session_ids
        for index, session_id in enumerate(ids):
            if session_id in ids[:index]:
                raise InvalidRequest(f"{self._sessions_path}[{index}]: {session_id} is given more than once")
        behavior = self.output_behavior
        if isinstance(behavior, UpdateExisting) and behavior.memory_store_id != stores[0].memory_store_id:
            raise InvalidRequest(
                "output_behavior.memory_store_id: must be the memory store in inputs, which is "
                f"{stores[0].memory_store_id}"
            )

    @property
    def store_id(self) -> str:
        """The store among the inputs."""
        return next(entry.memory_store_id for entry in self.inputs if isinstance(entry, MemoryStoreInput))

    @property
    def session_ids(self) -> list[str]:
        """The sessions among the inputs, as they were sent."""
        return next(entry.session_ids for entry in self.inputs if isinstance(entry, SessionsInput))

    @property
    def store_path(self) -> str:
        """Where in the body the store is named."""
        index = next(n for n, entry in enumerate(self.inputs) if isinstance(entry, MemoryStoreInput))
        return f"inputs[{index}].memory_store_id"

    @property
    def _sessions_path(self) -> str:
        index = next(n for n, entry in enumerate(self.inputs) if isinstance(entry, SessionsInput))
        return f"inputs[{index}].session_ids"

    def session_path(self, session_id: str) -> str:
        """Where in the body a session is named."""
        return f"{self._sessions_path}[{self.session_ids.index(session_id)}]"

    @property
    def model_config(self) -> "DreamModel":
        """The model, whichever form it was sent in."""
        return DreamModel(id=self.model if isinstance(self.model, str) else self.model.id)


class DreamModel(msgspec.Struct, kw_only=True):
    """The model that does a dream's work."""

    id: str
    speed: Literal["standard"] = "standard"


class DreamOutput(msgspec.Struct, tag="memory_store", kw_only=True):
    """Where the result is."""

    memory_store_id: str


class DreamError(msgspec.Struct, kw_only=True):
    """Why a dream has failed."""

    type: DreamErrorType
    message: str


class DreamUsage(msgspec.Struct, kw_only=True):
    """The tokens that a dream has used. ``input_tokens`` are the uncached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Dream(msgspec.Struct, tag="dream", kw_only=True):
    """The dream as the API shows it."""

    id: str
    status: DreamStatus
    inputs: list[DreamInput]
    outputs: list[DreamOutput]
    model: DreamModel
    instructions: str | None
    output_behavior: CreateNew | UpdateExisting
    session_id: str | None
    error: DreamError | None
    usage: DreamUsage
    created_at: str
    ended_at: str | None
    archived_at: str | None
