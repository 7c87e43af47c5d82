"""Settings of what happens without a request: webhooks, dreams, and the judging of outcomes."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, field

from corral.settings.section import Count, Seconds, Section
from corral.wire.secret import Secret


class DeclaredWebhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook endpoint that the settings declare."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    url: Annotated[str, Meta(min_length=1, max_length=2047)]
    events: Annotated[list[str], Meta(min_length=1)]


class Webhooks(Section, frozen=True, kw_only=True):
    """Endpoints outside that are told what happens (docs/webhooks.md)."""

    endpoints: Annotated[
        list[DeclaredWebhook],
        Meta(
            description="Endpoints with a name, a URL and the events that they are told (`all` for all of "
            "the documented ones). Others can be registered with `corral admin webhook create`.",
            examples=[
                [{"name": "ci", "url": "https://ci.example.com/corral", "events": ["session.status_idled"]}]
            ],
        ),
    ] = field(default_factory=list[DeclaredWebhook])
    secrets: Annotated[
        Secret | None,
        Meta(
            description="The signing secrets of these endpoints, as `name=whsec_...`, separated by commas "
            "(`corral admin webhook secret` makes one). A name that occurs twice signs with both, which is "
            "how one is replaced.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    internal: Annotated[
        list[str],
        Meta(
            description="Hosts (`hooks.corp.example`, `*.corp.example`), addresses and ranges "
            "(`10.0.0.0/8`) that may be told although they are private or loopback. A host that is named "
            "may also be one of plain http or another port than 443. Link-local and metadata addresses are "
            "never told anything.",
            examples=[["hooks.corp.example", "10.20.0.0/16"]],
        ),
    ] = field(default_factory=list[str])
    ca_file: Annotated[
        str | None,
        Meta(description="A file of certificates to trust beside the usual ones, in PEM."),
    ] = None
    timeout_seconds: Annotated[
        Seconds, Meta(description="How long one attempt may take, from beginning to end.")
    ] = 10.0
    max_attempts: Annotated[
        int, Meta(ge=1, le=3, description="How often an event is sent at most before it is dropped.")
    ] = 3
    retry_backoff_seconds: Annotated[
        Seconds, Meta(description="Shortest wait before an event is sent again.")
    ] = 5.0
    retry_backoff_max_seconds: Annotated[
        Seconds, Meta(description="Longest wait before an event is sent again.")
    ] = 120.0
    disable_after_seconds: Annotated[
        Seconds,
        Meta(description="An endpoint that has failed for this long without a break is disabled."),
    ] = 259_200.0
    concurrency: Annotated[Count, Meta(description="Events that one server sends at the same moment.")] = 64
    concurrency_per_endpoint: Annotated[
        Count, Meta(description="Events that all servers send to one endpoint at the same moment.")
    ] = 8
    keep_seconds: Annotated[
        Seconds, Meta(description="How long what became of an event can be looked up.")
    ] = 259_200.0
    organization_id: Annotated[str, Meta(description="`data.organization_id` of every message.")] = "corral"
    workspace_id: Annotated[str, Meta(description="`data.workspace_id` of every message.")] = "default"

    def secrets_by_name(self) -> dict[str, list[Secret]]:
        """The signing secrets of each declared endpoint. What cannot be read is left out; see `conflicts`."""
        found: dict[str, list[Secret]] = {}
        for entry in ("" if self.secrets is None else self.secrets.reveal()).split(","):
            name, equals, text = entry.strip().partition("=")
            if equals and text:
                found.setdefault(name.strip(), []).append(Secret(text.strip()))
        return found

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Two endpoints of one name, secrets that are none, hosts that name nothing, waits upside down."""
        from corral.wire.addresses import BadHost, Internal
        from corral.wire.webhook_signing import check_secret

        names = [one.name for one in self.endpoints]
        if len(set(names)) < len(names):
            yield "endpoints", "two endpoints have the same name"
        for entry in ("" if self.secrets is None else self.secrets.reveal()).split(","):
            _, equals, text = entry.strip().partition("=")
            try:
                if entry.strip():
                    check_secret(Secret(text if equals else ""))
            except ValueError as error:
                yield "secrets", f"must be name=whsec_... pairs, separated by commas; {error}"
                break
        try:
            Internal(self.internal)
        except BadHost as error:
            yield "internal", str(error)
        if self.retry_backoff_max_seconds < self.retry_backoff_seconds:
            yield "retry_backoff_max_seconds", "must not be less than retry_backoff_seconds"


class Dreams(Section, frozen=True, kw_only=True):
    """Dreams: jobs that reorganise a memory store in the light of past sessions."""

    concurrency: Annotated[
        Count, Meta(description="Dreams that run at the same moment over all servers; more wait their turn.")
    ] = 4
    timeout_seconds: Annotated[
        Seconds, Meta(description="A dream that runs longer than this fails with `timeout`.")
    ] = 14_400.0
    max_store_bytes: Annotated[
        Count,
        Meta(description="A dream over a store that holds more fails with `input_memory_store_too_large`."),
    ] = 10_485_760
    max_reading_characters: Annotated[
        Count,
        Meta(
            description="How much of memories and transcripts the agent of a dream is given to read in all. "
            "It has to fit the model's context: about four characters make a token."
        ),
    ] = 400_000


class Outcomes(Section, frozen=True, kw_only=True):
    """How work on outcomes is judged (docs/outcomes.md)."""

    grader_model: Annotated[
        str | None,
        Meta(
            description="The model that judges, by its Claude API id. Default: that of the agent whose work "
            "is judged. Without a list price it stops sessions that have a budget.",
            examples=["claude-sonnet-4-5"],
        ),
    ] = None
    heartbeat_seconds: Annotated[
        Seconds,
        Meta(description="How often `span.outcome_evaluation_ongoing` tells that the grader is at work."),
    ] = 20.0
