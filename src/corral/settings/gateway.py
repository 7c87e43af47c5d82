"""Settings of the vault and of the gateway that opens it."""

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field

from corral.settings.section import Count, Seconds, Section
from corral.wire.secret import Secret


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

    former_keys: Annotated[
        Secret | None,
        Meta(
            description="While keys are being replaced: the private keys that came before `key`, separated "
            "by commas. For the gateway alone; `corral admin rotate-keys` says when they can go.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None

    kms: Annotated[
        Literal["none", "hashicorp", "aws"],
        Meta(
            description="A KMS that the gateway has `key` decrypted by when it starts: `hashicorp` is the "
            "transit engine of HashiCorp Vault or OpenBao, `aws` is AWS KMS. `key` is then the ciphertext "
            "that `corral admin vault-key create --kms` prints. `corral up` keeps a pair without a KMS."
        ),
    ] = "none"
    kms_key: Annotated[
        str | None,
        Meta(description="The KMS's key: its name with `hashicorp`, its id, ARN or alias with `aws`."),
    ] = None
    kms_address: Annotated[
        str | None, Meta(description="The server of `hashicorp`; with `aws` another endpoint.")
    ] = None
    kms_mount: Annotated[str, Meta(description="Where the transit engine of `hashicorp` is.")] = "transit"
    kms_namespace: Annotated[str | None, Meta(description="The namespace of `hashicorp`, if any.")] = None
    kms_token: Annotated[
        Secret | None,
        Meta(
            description="The token for `hashicorp`, unless kms_token_file is set. For the gateway alone.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    kms_token_file: Annotated[
        str | None, Meta(description="A file with that token, which is read when it is needed.")
    ] = None
    kms_region: Annotated[str | None, Meta(description="The region of `aws`.")] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A key that is none, or the wrong half, two halves that are no pair, and what a KMS needs."""
        yield from self._kms_conflicts()
        if self.public_key is None and self.key is None and self.former_keys is None:
            return
        # Imported here, since most commands have no such key and the library takes its time.
        from corral.vault.keys import PRIVATE_PREFIX, PrivateKey, PublicKey, WrongKey, split_keys

        public = private = None
        try:
            public = None if self.public_key is None else PublicKey.parse(self.public_key)
        except WrongKey as error:
            yield "public_key", str(error)
        if self.kms != "none":
            # The rest is seen when the gateway has them decrypted.
            if self.key is not None and self.key.reveal().strip().startswith(PRIVATE_PREFIX):
                yield (
                    "key",
                    "is not encrypted, but vault.kms is set; give the ciphertext that `corral admin "
                    "vault-key create --kms` prints, and this one as vault.former_keys until everything is "
                    "wrapped anew",
                )
            return
        try:
            private = None if self.key is None else PrivateKey.parse(self.key)
        except WrongKey as error:
            yield "key", str(error)
        if public is not None and private is not None and public.id != private.public.id:
            yield "public_key", "is not the other half of vault.key; set the two that were made together"
        try:
            _ = [PrivateKey.parse(former) for former in split_keys(self.former_keys)]
        except WrongKey as error:
            yield "former_keys", f"one of them {error}"

    def _kms_conflicts(self) -> Iterator[tuple[str, str]]:
        """What the KMS needs that is named. Servers may have the same file, without the credential."""
        if self.kms == "none":
            return
        if self.kms_key is None:
            yield "kms_key", f"is needed for {self.kms}: the key of the KMS that encrypts the vault's"
        if self.kms == "hashicorp" and self.kms_address is None:
            yield "kms_address", "is needed for hashicorp, such as https://vault.corp.example:8200"
        if self.kms == "aws" and self.kms_region is None:
            yield "kms_region", "is needed for aws"
        token = self.kms_token or self.kms_token_file
        if self.kms == "hashicorp" and self.key is not None and token is None:
            yield "kms_token", "is needed for hashicorp; or set kms_token_file"


class Gateway(Section, frozen=True, kw_only=True):
    """The gateway: it opens secrets, speaks to MCP servers, and is the agents' way to other machines."""

    host: Annotated[
        str,
        Meta(
            description="Address that `corral gateway` listens on for servers. Anything but a loopback "
            "address lets other machines in: put TLS in front of it."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port for servers; 0 takes a free one.")] = 8401
    url: Annotated[
        str | None,
        Meta(
            description="Where servers reach the gateway, such as `http://127.0.0.1:8401`. Without it a "
            "server has none: agents then cannot use MCP servers. `corral up` runs a gateway of its own "
            "unless this is set."
        ),
    ] = None
    internal: Annotated[
        list[str],
        Meta(
            description="Hosts (`git.corp.example`, `*.corp.example`), addresses and ranges (`10.0.0.0/8`) "
            "that agents may reach although they are private or loopback. Link-local addresses and those "
            "where clouds hand out credentials (such as 169.254.169.254) are never reached.",
            examples=[["*.corp.example", "10.20.0.0/16"]],
        ),
    ] = field(default_factory=list[str])
    internal_by_environment: Annotated[
        dict[str, list[str]],
        Meta(
            description="Further internal hosts and ranges for single environments, by an environment's id "
            "or name.",
            examples=[{"staging": ["10.30.0.0/16"]}],
        ),
    ] = field(default_factory=dict[str, list[str]])
    identity_issuer: Annotated[
        str | None,
        Meta(
            description="With it, each request to an MCP server carries a signed token "
            "(`Corral-Agent-Identity`) that names the agent and the session; this is its `iss`. "
            "`corral admin identity export` prints the keys by which servers check it.",
            examples=["https://corral.corp.example"],
        ),
    ] = None
    connect_seconds: Annotated[
        Seconds,
        Meta(description="How long connecting to an MCP server and listing its tools may take, together."),
    ] = 15.0
    call_seconds: Annotated[
        Seconds, Meta(description="How long one call of an MCP tool may take, from beginning to end.")
    ] = 300.0
    idle_seconds: Annotated[
        Seconds, Meta(description="A connection to an MCP server without a call for this long is closed.")
    ] = 300.0
    egress_host: Annotated[
        str,
        Meta(
            description="Address that `corral gateway` listens on for workers, who bring the traffic of "
            "sandboxes. From other machines it is encrypted with the deployment's own certificate."
        ),
    ] = "127.0.0.1"
    egress_port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Port for workers; 0 takes a free one."),
    ] = 8402
    egress_address: Annotated[
        str | None,
        Meta(
            description="Where workers reach the gateway, such as `gateway.internal:8402`: servers tell "
            "them. Without it sandboxes have no network at all. `corral up` sets its own."
        ),
    ] = None
    egress_ports: Annotated[
        list[Annotated[int, Meta(ge=1, le=65535)]],
        Meta(
            description="Ports that sandboxes may reach on hosts of the internet; empty for all. Internal "
            "hosts that are named may be reached on every port."
        ),
    ] = field(default_factory=lambda: [80, 443])
    egress_body_bytes: Annotated[
        Count, Meta(description="Largest body of one request or answer that a sandbox may send or get.")
    ] = 17_179_869_184
    egress_connections: Annotated[
        Count, Meta(description="Connections of sandboxes that one gateway takes at the same time.")
    ] = 4096
    egress_connections_of_session: Annotated[
        Count, Meta(description="Connections that one session's sandbox may have open at the same time.")
    ] = 128
    package_hosts: Annotated[
        list[str],
        Meta(
            description="Hosts (and `*.` wildcards) that `allow_package_managers` opens: the registries that "
            "your agents install packages from, or your mirrors of them. None are named by Corral.",
            examples=[["packages.corp.example"]],
        ),
    ] = field(default_factory=list[str])
    git_hosts: Annotated[
        list[str],
        Meta(
            description="Hosts (with their port if it is not 443) whose repositories sessions may have as "
            "`github_repository` resources.",
            examples=[["github.com", "git.corp.example"]],
        ),
    ] = field(default_factory=lambda: ["github.com"])
    ca_bundle: Annotated[
        str | None,
        Meta(
            description="File with further certificates (PEM) by which the gateway knows internal hosts. "
            "Hosts of the internet are verified by this machine's certificates alone."
        ),
    ] = None
    web_fetch: Annotated[
        bool,
        Meta(
            description="Whether agents may have the tool `web_fetch`: the gateway fetches pages for them "
            "(docs/web-tools.md). Servers and gateways need the same setting."
        ),
    ] = False
    web_fetch_bytes: Annotated[
        int, Meta(ge=1, le=16_777_216, description="Largest page, PDF or image that is fetched, unpacked.")
    ] = 10_485_760
    web_seconds: Annotated[
        Seconds, Meta(description="How long one fetch or search may take, with all redirects.")
    ] = 30.0
    search: Annotated[
        Literal["none", "provider", "endpoint"],
        Meta(
            description="Whether agents may have the tool `web_search`, and who searches: the model "
            "provider, in a request of its own, or `search_endpoint`. Servers and gateways need the same "
            "setting."
        ),
    ] = "none"
    search_endpoint: Annotated[
        str | None,
        Meta(
            description="Where the gateway searches: the address of a SearXNG, or of anything that answers "
            "in its form (docs/web-tools.md). It may be internal; over the internet it needs https.",
            examples=["https://search.corp.example/search"],
        ),
    ] = None
    search_key: Annotated[
        Secret | None,
        Meta(
            description="Sent to the search endpoint as bearer token. For the gateway alone.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Internal hosts that name nothing which could be reached, and an address that is no URL."""
        from corral.wire.addresses import BadHost, Internal

        named = [("internal", self.internal), *self._of_environments()]
        for key, entries in named:
            try:
                Internal(entries)
            except BadHost as error:
                yield key, str(error)
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            yield "url", "must begin with http:// or https://"
        if self.egress_address is not None:
            host, _, port = self.egress_address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                yield "egress_address", "must be a host and a port, such as gateway.internal:8402"
        yield from self._of_search()

    def _of_search(self) -> Iterator[tuple[str, str]]:
        from corral.wire.addresses import Internal

        if self.search_endpoint is None:
            if self.search == "endpoint":
                yield "search_endpoint", "is needed for gateway.search: endpoint"
            return
        try:
            parts = urlsplit(self.search_endpoint)
            host = parts.hostname
            Internal([host] if host else [])
        except ValueError as error:  # BadHost is one
            yield "search_endpoint", str(error)
            return
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.query:
            yield "search_endpoint", "must be an http or https URL without user name and query"

    def _of_environments(self) -> Iterator[tuple[str, list[str]]]:
        for entries in self.internal_by_environment.values():
            yield "internal_by_environment", entries
