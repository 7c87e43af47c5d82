"""The private key of a `corral up`: on the disk for the gateway, and in no process that serves the API."""

import os
from base64 import urlsafe_b64decode
from pathlib import Path

import httpx

from corral.vault.keys import PRIVATE_PREFIX, PrivateKey
from corral.wire.secret import Secret
from tests.unit.cli.test_up import corral_up


def memory(pid: int) -> bytes:
    """Everything that a process can write to: its heap, its stacks, its data."""
    found: list[bytes] = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *rest = line.split()
            if not rights.startswith("rw") or rest[-1].startswith(("[vvar", "[vsyscall")):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            try:
                found.append(os.pread(file.fileno(), end - start, start))
            except OSError:
                continue  # a page that the process has but never touched
    return b"".join(found)


async def test_the_process_that_serves_the_api_never_has_the_private_key(open_folder: Path) -> None:
    data = open_folder / "data"
    async with corral_up(data) as up:
        assert (data / "vault").stat().st_mode & 0o777 == 0o700
        assert (data / "vault" / "private.key").stat().st_mode & 0o777 == 0o600
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client:
            vault = (await client.post("/v1/vaults", json={"display_name": "V"})).json()
            auth = {"type": "static_bearer", "token": "hunter2", "mcp_server_url": "https://x.example"}
            made = await client.post(f"/v1/vaults/{vault['id']}/credentials", json={"auth": auth})
            assert made.status_code == 200
        text = (data / "vault" / "private.key").read_text().strip()
        public = (data / "vault" / "public.key").read_text().strip()
        raw = urlsafe_b64decode(text.removeprefix(PRIVATE_PREFIX))[:32]
        held = memory(up.process.pid)
        assert public.encode() in held
        assert text.removeprefix(PRIVATE_PREFIX).encode() not in held
        assert raw not in held
        assert PrivateKey.parse(Secret(text)).public.text == public
    async with corral_up(data) as up:
        assert (data / "vault" / "private.key").read_text().strip() == text


def test_the_test_would_find_a_key_in_memory() -> None:
    key = PrivateKey.generate()
    held = memory(os.getpid())
    assert urlsafe_b64decode(key.text.reveal().removeprefix(PRIVATE_PREFIX))[:32] in held
