"""Git repositories that are attached to sessions (contract section 9). Their tokens never come out.

A token is sealed for the gateway, which alone adds it to what git sends to that repository.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from psycopg.rows import DictRow

from corral.store.database import Connection
from corral.vault.keys import PublicKey
from corral.vault.sealing import Place, seal
from corral.wire.errors import InvalidRequest
from corral.wire.ids import new_id
from corral.wire.repositories import check_branch, check_sha, clone_path, parse_repository
from corral.wire.secret import Secret
from corral.wire.session_resources import BranchCheckout, RepositoryParams, check_overlap

GITHUB: Final = ("github.com",)


class AttachedRepositories:
    """Attaches repositories. key: what tokens are sealed with; git_hosts: whose repositories are taken."""

    def __init__(self, key: PublicKey | None = None, git_hosts: Sequence[str] = GITHUB) -> None:
        self._key = key
        self._git_hosts = tuple(git_hosts)

    async def attach(
        self,
        connection: Connection,
        session_id: str,
        params: RepositoryParams,
        taken: Sequence[str],
        where: str,
    ) -> DictRow:
        """Attach a repository to a session; its sandbox finds it cloned.

        Raises:
            InvalidRequest: its address, its place or its checkout is inadmissible, or a token is given and
                this server cannot seal it.
        """
        repository = parse_repository(params.url, self._git_hosts, where)
        path = clone_path(params.mount_path, repository.name, where)
        check_overlap(path, taken, where)
        body: dict[str, Any] = {"url": params.url, "mount_path": path, "checkout": None}
        if params.checkout is not None:
            if isinstance(params.checkout, BranchCheckout):
                check_branch(params.checkout.name, where)
            else:
                check_sha(params.checkout.sha, where)
            body["checkout"] = msgspec.to_builtins(params.checkout)
        cursor = await connection.execute(
            "insert into session_resources (id, session_id, type, mount_path, body)"
            " values (%s, %s, 'github_repository', %s, %s)"
            " returning id, session_id, position, type, mount_path, file_id, body, created_at, updated_at",
            (new_id("sesrsc"), session_id, path, msgspec.json.encode(body).decode()),
        )
        row = await cursor.fetchone()
        assert row is not None
        if params.authorization_token is not None:
            await self.seal_token(connection, row["id"], params.authorization_token)
        return row

    async def seal_token(self, connection: Connection, resource_id: str, token: Secret) -> None:
        """Keep a repository's token, in place of the one that it had.

        Raises:
            InvalidRequest: ``vault_key_missing``: this server cannot seal.
        """
        if self._key is None:
            raise InvalidRequest(
                "This server has no key to seal secrets with, so it takes no authorization_token. Its "
                "operator makes a pair with `corral admin vault-key create` and sets "
                "CORRAL_VAULT__PUBLIC_KEY.",
                error_code="vault_key_missing",
            )
        await connection.execute(
            "insert into session_repository_secrets (resource_id, key_id, sealed) values (%s, %s, %s)"
            " on conflict (resource_id) do update"
            " set key_id = excluded.key_id, sealed = excluded.sealed, updated_at = now()",
            (resource_id, self._key.id, seal(token, Place(resource_id, "token"), self._key)),
        )
