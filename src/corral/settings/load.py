"""How much a server takes on at once, and how it lets go when it is told to stop."""

from typing import Annotated

from msgspec import Meta

from corral.settings.section import Count, Seconds, Section


class Load(Section, frozen=True, kw_only=True):
    """How much one server takes on at once, and how it lets go when it is told to stop."""

    drain_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="A server that is told to stop waits this long for the answers of model requests "
            "that are under way; its other sessions go on elsewhere at once. A second signal ends the wait. "
            "Under Kubernetes keep it some seconds below `terminationGracePeriodSeconds`.",
        ),
    ] = 20.0
    drain_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="A server that is told to stop goes on serving for at least this long, while "
            "`/readyz` says no: the time that a load balancer takes to notice.",
        ),
    ] = 0.0
    max_requests: Annotated[
        Count,
        Meta(
            description="Requests that one server works on at the same moment, streams not counted; more are "
            "answered with 529. Workers are not refused."
        ),
    ] = 2048
    max_requests_per_key: Annotated[
        int,
        Meta(ge=0, description="The same for a single API key; more are answered with 429. 0 is no limit."),
    ] = 0
    max_streams: Annotated[
        Count,
        Meta(description="Event streams that one server holds open; more are answered with 529."),
    ] = 4096
    max_streams_per_key: Annotated[
        int,
        Meta(ge=0, description="The same for a single API key; more are answered with 429. 0 is no limit."),
    ] = 0
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=32 * 1024 * 1024,
            description="Bytes of request bodies that one server holds in memory at the same moment, not "
            "counting files that are uploaded; more are answered with 529. Workers wait instead. What is "
            "made of a body while it is worked on takes about as much again.",
        ),
    ] = 256 * 1024 * 1024
    stalled_seconds: Annotated[
        Seconds,
        Meta(
            description="A client that takes nothing of what is waiting for it for so long is disconnected. "
            "In a stream, previews are left out before that."
        ),
    ] = 30.0
    max_queued_commits: Annotated[
        Count,
        Meta(
            description="Changes that wait in one server to be written to the database. Beyond it, requests "
            "that change something are answered with 529."
        ),
    ] = 5000
    max_waiting_sessions: Annotated[
        int,
        Meta(
            ge=0,
            description="Sessions that wait for a brain, over all servers. Beyond it, what would start more "
            "work is answered with 529: new sessions with events, and messages. 0 is no limit.",
        ),
    ] = 0
