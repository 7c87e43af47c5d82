"""What is attached to a session, on the wire (contract section 9)."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Id, Request
from corral.wire.secret import SecretText

UPLOADS: Final = "/mnt/session/uploads"
OUTPUTS: Final = "/mnt/session/outputs"
RESOURCES: Final = 500
"""Most resources of one session."""
MEMORY_STORES: Final = 8
"""Most memory stores of one session."""
_PATH_LENGTH: Final = 4096
_NAME_BYTES: Final = 255
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

MountPath = Annotated[str, Meta(min_length=1, max_length=_PATH_LENGTH)]


class FileResourceParams(Request, tag="file"):
    """A file to mount, read-only."""

    file_id: Id
    mount_path: MountPath | None = None


class BranchCheckout(Request, tag="branch"):
    """The tip of a branch."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]


class CommitCheckout(Request, tag="commit"):
    """One commit."""

    sha: Annotated[str, Meta(min_length=7, max_length=64)]


class RepositoryToken(SecretText):
    """What opens a repository."""

    __slots__ = ()
    longest = 4096


class RepositoryParams(Request, tag="github_repository"):
    """A repository to clone."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    authorization_token: RepositoryToken | None = None
    mount_path: MountPath | None = None
    checkout: BranchCheckout | CommitCheckout | None = None


class MemoryStoreParams(Request, tag="memory_store"):
    """A memory store to mount."""

    memory_store_id: Id
    access: Literal["read_write", "read_only"] | None = None
    instructions: Annotated[str, Meta(max_length=4096)] | None = None


ResourceParams = FileResourceParams | RepositoryParams | MemoryStoreParams


class AddResource(Request):
    """The body of ``POST /v1/sessions/{id}/resources``: a file or a repository, but no memory store."""

    type: Literal["file", "github_repository"]
    file_id: Id | UnsetType = UNSET
    url: Annotated[str, Meta(min_length=1, max_length=2048)] | UnsetType = UNSET
    authorization_token: RepositoryToken | UnsetType | None = UNSET
    mount_path: MountPath | None = None
    checkout: BranchCheckout | CommitCheckout | UnsetType | None = UNSET

    def check(self) -> None:
        """Refuse what does not belong to the type, and what is missing of it."""
        _ = self.params

    @property
    def params(self) -> "FileResourceParams | RepositoryParams":
        """The same as one of the parameters of a new session.

        Raises:
            InvalidRequest: a field is missing, or is one of the other type.
        """
        if self.type == "file":
            for name in ("url", "authorization_token", "checkout"):
                if getattr(self, name) is not UNSET:
                    raise InvalidRequest(f"{name}: Extra inputs are not permitted")
            if self.file_id is UNSET:
                raise InvalidRequest("file_id: Field required")
            return FileResourceParams(file_id=self.file_id, mount_path=self.mount_path)
        if self.file_id is not UNSET:
            raise InvalidRequest("file_id: Extra inputs are not permitted")
        if self.url is UNSET:
            raise InvalidRequest("url: Field required")
        token, checkout = self.authorization_token, self.checkout
        return RepositoryParams(
            url=self.url,
            authorization_token=None if token is UNSET else token,
            mount_path=self.mount_path,
            checkout=None if checkout is UNSET else checkout,
        )


class UpdateResource(Request):
    """The body of ``POST /v1/sessions/{id}/resources/{id}``: a repository's new token."""

    authorization_token: RepositoryToken


class ResourceDeleted(msgspec.Struct, tag="session_resource_deleted", kw_only=True):
    """What a deletion is answered with."""

    id: str


def check_available(
    resources: Sequence[ResourceParams], environment_id: str, *, self_hosted: bool
) -> list[ResourceParams]:
    """The resources of a new session, once those that cannot be attached are refused.

    Raises:
        InvalidRequest: the environment does not take such resources; too many; a memory store is named
            twice.
    """
    if self_hosted and any(not isinstance(resource, MemoryStoreParams) for resource in resources):
        raise refused_on_self_hosted(environment_id)
    if len(resources) > RESOURCES:
        raise InvalidRequest(f"resources: at most {RESOURCES} items")
    attachable: list[ResourceParams] = []
    stores: set[str] = set()
    for index, resource in enumerate(resources):
        match resource:
            case FileResourceParams() | RepositoryParams():
                attachable.append(resource)
            case MemoryStoreParams():
                if resource.memory_store_id in stores:
                    raise InvalidRequest(
                        f"resources[{index}].memory_store_id: {resource.memory_store_id} is named twice"
                    )
                stores.add(resource.memory_store_id)
                if len(stores) > MEMORY_STORES:
                    raise InvalidRequest(f"resources: at most {MEMORY_STORES} memory stores")
                attachable.append(resource)
    return attachable


def refused_on_self_hosted(environment_id: str) -> InvalidRequest:
    """The documented error for a file or a repository on an environment whose sandboxes are the client's."""
    return InvalidRequest(
        f"Environment {environment_id} is a self-hosted environment. "
        "`resources` are not supported with self-hosted environments."
    )


def upload_path(mount_path: str | None, file_id: str, where: str) -> str:
    """Where a file is mounted: a path below ``/mnt/session/uploads``, by default the file's id.

    A path that is given is rooted there, whether or not it begins with a slash or with the root itself.

    Raises:
        InvalidRequest: it leads out of there, names no file, or holds what a path must not; `where`, such as
            ``resources[0].``, goes before the field.
    """
    given = file_id if mount_path is None else mount_path
    parts = [part for part in given.split("/") if part not in ("", ".")]
    root = UPLOADS.strip("/").split("/")
    if given.startswith("/") and parts[: len(root)] == root:
        parts = parts[len(root) :]
    if ".." in parts:
        raise InvalidRequest(f"{where}mount_path: {given!r} escapes /uploads/")
    if not parts or given.endswith("/"):
        raise InvalidRequest(f"{where}mount_path: {given!r} names no file")
    if _CONTROLS.search(given):
        raise InvalidRequest(f"{where}mount_path: must not hold control characters")
    if any(len(part.encode()) > _NAME_BYTES for part in parts):
        raise InvalidRequest(f"{where}mount_path: no component may have more than {_NAME_BYTES} bytes")
    path = "/".join((UPLOADS, *parts))
    if len(path.encode()) > _PATH_LENGTH - 1:
        raise InvalidRequest(f"{where}mount_path: must have at most {_PATH_LENGTH - 1} bytes")
    return path


def check_overlap(path: str, taken: Sequence[str], where: str) -> None:
    """Refuse a mount path that another resource has, or that one of the two would lie below.

    Raises:
        InvalidRequest: it is so; `where` goes before the field.
    """
    for other in taken:
        if path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/"):
            raise InvalidRequest(f"{where}mount_path: {path} overlaps with {other}")


def resource_object(
    id: str, type: str, body: dict[str, Any], created_at: str, updated_at: str
) -> dict[str, Any]:
    """A resource as the API shows it; a memory store without an id and times (contract section 9)."""
    if type == "memory_store":
        return {"type": type, **body}
    return {"type": type, "id": id, **body, "created_at": created_at, "updated_at": updated_at}
