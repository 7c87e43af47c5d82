"""User profiles on the wire, in the three forms that the API has had (contract section 22).

A profile says whom a platform serves: who that is for the platform (`ExternalUserDetails`), and how it is
served. Clients of the older forms know two of these details, under other names. Which form a request has,
and its answer gets, is told by the ``anthropic-beta`` header (`form_of`).
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire import metadata as meta
from corral.wire.errors import InvalidRequest
from corral.wire.fields import Metadata, MetadataTexts, Request
from corral.wire.times import from_wire, to_wire

Form: TypeAlias = Literal["2026-03-24", "2026-08-18", "2026-09-04"]
FORMS: Final[tuple[Form, ...]] = ("2026-09-04", "2026-08-18", "2026-03-24")
"""The dates of the forms, the newest first."""
_BETA: Final = "user-profiles-"

AccessType: TypeAlias = Literal["application", "passthrough"]
OrderBy: TypeAlias = Literal["created_at", "name"]
ORDERS_BY: Final[tuple[OrderBy, ...]] = ("created_at", "name")

Name = Annotated[str, Meta(max_length=255)]
Opaque = Annotated[str, Meta(min_length=1, max_length=255)]
Country = Annotated[str, Meta(pattern=r"^[A-Z]{2}\Z")]

_AHEAD: Final = timedelta(minutes=1)
"""By how much a platform's clock may be ahead of ours."""
_COMPLETE: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


class DetailsParams(Request):
    """What the platform states about the entity; an absent field stays as it is."""

    account_status: Literal["active", "suspended", "blocked"] | UnsetType | None = UNSET
    country: Country | UnsetType | None = UNSET
    email_hash: Opaque | UnsetType | None = UNSET
    entity_type: Literal["individual", "business", "non_profit", "government"] | UnsetType | None = UNSET
    name_hash: Opaque | UnsetType | None = UNSET
    onboarded_at: str | UnsetType = UNSET
    reference_id: Opaque | UnsetType | None = UNSET


class _Params(Request):
    """What creation and update have in common."""

    external_id: Opaque | None = None
    external_user_details: DetailsParams | UnsetType = UNSET
    external_user_onboarded_at: str | UnsetType = UNSET
    metadata: Metadata | None = None
    name: Name | None = None

    def details(self, form: Form, now: datetime) -> dict[str, str | None]:
        """The details that the request states, by their present names, whichever form it has.

        Raises:
            InvalidRequest: a field belongs to another form, or a time is none, or lies ahead.
        """
        if form == "2026-09-04":
            return self._present(now)
        if self.external_user_details is not UNSET:
            raise InvalidRequest(
                f"external_user_details: Extra inputs are not permitted under {_BETA}{form}; send external_id"
            )
        stated: dict[str, str | None] = {}
        if self.external_id is not None:
            stated["reference_id"] = self.external_id
        if self.external_user_onboarded_at is not UNSET:
            if form == "2026-03-24":
                raise InvalidRequest(
                    f"external_user_onboarded_at: Extra inputs are not permitted under {_BETA}{form}"
                )
            stated["onboarded_at"] = _past(self.external_user_onboarded_at, "external_user_onboarded_at", now)
        return stated

    def _present(self, now: datetime) -> dict[str, str | None]:
        if self.external_id is not None:
            raise InvalidRequest(
                "external_id: Extra inputs are not permitted; send external_user_details.reference_id"
            )
        if self.external_user_onboarded_at is not UNSET:
            raise InvalidRequest(
                "external_user_onboarded_at: Extra inputs are not permitted; send "
                "external_user_details.onboarded_at"
            )
        if self.external_user_details is UNSET:
            return {}
        given = msgspec.structs.asdict(self.external_user_details)
        stated: dict[str, str | None] = {name: value for name, value in given.items() if value is not UNSET}
        if (moment := stated.get("onboarded_at")) is not None:
            stated["onboarded_at"] = _past(moment, "external_user_details.onboarded_at", now)
        return stated


class CreateUserProfile(_Params):
    """The body of ``POST /v1/user_profiles``."""

    access_type: AccessType = "application"

    def new_metadata(self) -> dict[str, str]:
        """The metadata of the new profile.

        Raises:
            InvalidRequest: a pair is out of bounds, or a value is empty.
        """
        for key, value in (self.metadata or {}).items():
            if value == "":
                raise InvalidRequest(f"metadata.{key}: must not be empty", error_code="invalid_metadata")
        return meta.created(self.metadata)


class UpdateUserProfile(_Params):
    """The body of ``POST /v1/user_profiles/{id}``: an absent or null field stays."""

    access_type: AccessType | None = None
    metadata: MetadataTexts | None = None

    def details(self, form: Form, now: datetime) -> dict[str, str | None]:
        """See `_Params.details`; what was stated once cannot be taken back.

        Raises:
            InvalidRequest: as there, or a detail is null.
        """
        stated = super().details(form, now)
        for name, value in stated.items():
            if value is None:
                raise InvalidRequest(f"external_user_details.{name}: cannot be cleared; omit it to keep it")
        return stated


class ExternalUserDetails(msgspec.Struct, kw_only=True, frozen=True):
    """What the platform has stated about the entity; null where it has stated nothing."""

    account_status: str | None = None
    country: str | None = None
    email_hash: str | None = None
    entity_type: str | None = None
    name_hash: str | None = None
    onboarded_at: str | None = None
    reference_id: str | None = None


class UserProfile(msgspec.Struct, tag="user_profile", kw_only=True):
    """A user profile as it is kept. `shown` is what clients get of it."""

    id: str
    name: str | None
    access_type: AccessType
    external_user_details: ExternalUserDetails
    metadata: dict[str, str]
    created_at: str
    updated_at: str


class ShownUserProfile(msgspec.Struct, tag="user_profile", kw_only=True):
    """A user profile as clients get it; the fields behind the times depend on the form that they know."""

    id: str
    name: str | None
    metadata: dict[str, str]
    trust_grants: dict[str, Any]
    created_at: str
    updated_at: str
    access_type: AccessType | UnsetType = UNSET
    external_user_details: ExternalUserDetails | UnsetType = UNSET
    external_id: str | UnsetType | None = UNSET
    external_user_onboarded_at: str | UnsetType | None = UNSET


class Address(msgspec.Struct, kw_only=True):
    """Where to send the person that a profile stands for, and until when."""

    type: Literal["enrollment_url", "user_profile_action_url"]
    url: str
    expires_at: str


class EnrollEndUser(Request, tag="enroll_end_user"):
    """The person that the profile stands for enrols."""


class CreateActionUrl(Request):
    """The body of ``POST /v1/user_profiles/{id}/action_urls``."""

    action: EnrollEndUser


def form_of(betas: Iterable[str]) -> Form:
    """The form of a request with these ``anthropic-beta`` values: the newest named one, or the newest.

    The newest named, since the official SDK adds the form it was made for to the one that a caller names.
    """
    named = set(betas)
    for form in FORMS:
        if _BETA + form in named:
            return form
    return FORMS[0]


def shown(profile: UserProfile, form: Form) -> dict[str, Any]:
    """The profile as a client of this form knows it.

    Nobody grants trust on a server of one's own, so ``trust_grants`` is always empty.
    """
    details = profile.external_user_details
    kept: dict[str, Any] = {
        "id": profile.id,
        "type": "user_profile",
        "name": profile.name,
        "metadata": profile.metadata,
        "trust_grants": {},
        "created_at": profile.created_at,
        "updated_at": profile.updated_at,
    }
    match form:
        case "2026-03-24":
            return {**kept, "external_id": details.reference_id}
        case "2026-08-18":
            return {
                **kept,
                "access_type": profile.access_type,
                "external_id": details.reference_id,
                "external_user_onboarded_at": details.onboarded_at,
            }
        case "2026-09-04":
            return {**kept, "access_type": profile.access_type, "external_user_details": details}


def _past(text: str, path: str, now: datetime) -> str:
    """A complete time that is not ahead, in the form of the wire."""
    try:
        if not _COMPLETE.fullmatch(text):
            raise ValueError
        moment = from_wire(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{path}: Input should be a complete RFC 3339 date and time with an offset"
        ) from None
    if moment > now + _AHEAD:
        raise InvalidRequest(f"{path}: must not be in the future")
    return to_wire(moment)
