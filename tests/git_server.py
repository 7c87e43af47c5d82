"""A git server that speaks smart HTTP with Basic authentication: git's own http-backend behind TLS."""

import asyncio
import base64
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from tests.upstream_servers import Answer, Asked, Upstream, upstream

USER = "x-access-token"


@dataclass
class GitServer:
    """Repositories by `owner/name`, each with the tokens that may use it (none: everybody reads).

    forbidden: tokens that are known and may read nothing. broken: repositories that the server fails on.
    """

    host: str
    root: Path
    tokens: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    forbidden: set[str] = field(default_factory=set[str])
    broken: set[str] = field(default_factory=set[str])
    server: Upstream | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self.server is not None
        return self.server.port

    @property
    def authority(self) -> str:
        """Its host and port, as in the setting `gateway.git_hosts`."""
        return f"{self.host}:{self.port}"

    def url(self, name: str) -> str:
        """The address of a repository."""
        return f"https://{self.authority}/{name}"

    def add(self, name: str, *tokens: str) -> str:
        """Make a repository with two branches and three commits; returns the address."""
        work = self.root / f"work-{name.replace('/', '-')}"
        work.mkdir()
        self.git(work, "init", "-q", "-b", "main")
        (work / "README.md").write_text("hello\n")
        self.commit(work, "first")
        (work / "second.txt").write_text("second\n")
        self.commit(work, "second")
        self.git(work, "checkout", "-q", "-b", "topic/one")
        (work / "topic.txt").write_text("topic\n")
        self.commit(work, "topic")
        self.git(work, "checkout", "-q", "main")
        bare = self.bare(name)
        bare.parent.mkdir(parents=True, exist_ok=True)
        self.git(self.root, "clone", "-q", "--bare", str(work), str(bare))
        self.git(bare, "config", "http.receivepack", "true")
        self.git(bare, "config", "uploadpack.allowAnySHA1InWant", "true")
        if tokens:
            self.tokens[name] = set(tokens)
        return self.url(name)

    def bare(self, name: str) -> Path:
        """Where a repository is kept."""
        return self.root / "served" / f"{name}.git"

    def commit(self, work: Path, message: str) -> None:
        """Commit everything."""
        self.git(work, "add", "-A")
        self.git(work, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", message)

    def git(self, folder: Path, *arguments: str) -> str:
        """Run git; its output."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    async def respond(self, asked: Asked) -> Answer:
        """Answer one request."""
        path, _, query = asked.path.partition("?")
        name = "/".join(path.strip("/").split("/")[:2]).removesuffix(".git")
        if not self.bare(name).is_dir():
            return 404, [("content-length", "0")], []
        if name in self.broken:
            return 500, [("content-length", "0")], []
        wanted = self.tokens.get(name)
        if wanted is not None:
            if asked.header("authorization") in {_basic(token) for token in self.forbidden}:
                return 403, [("content-length", "0")], []
            if asked.header("authorization") not in {_basic(token) for token in wanted}:
                return 401, [("www-authenticate", "Basic realm=git"), ("content-length", "0")], []
        return await self._backend(
            asked, f"/{name}.git" + path[len(f"/{name}") :].removeprefix(".git"), query
        )

    async def _backend(self, asked: Asked, path: str, query: str) -> Answer:
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root / "served"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": asked.method,
            "CONTENT_TYPE": asked.header("content-type") or "",
            "CONTENT_LENGTH": str(len(asked.body)),
            "HTTP_CONTENT_ENCODING": asked.header("content-encoding") or "",
            "GIT_PROTOCOL": asked.header("git-protocol") or "",
            "REMOTE_USER": USER,
            "HOME": str(self.root),
        }
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        said, _ = await process.communicate(asked.body)
        head, _, body = said.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        kept = [(name.lower(), value) for name, value in headers if name != "Status"]
        return status, [*kept, ("content-length", str(len(body)))], [body]


def _basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"{USER}:{token}".encode()).decode()


@asynccontextmanager
async def git_server(context: ssl.SSLContext, host: str) -> AsyncGenerator[GitServer]:
    """A server with no repositories yet."""
    root = Path(mkdtemp(prefix="corral-git-"))
    server = GitServer(host, root)
    try:
        async with upstream(context, respond=server.respond) as running:
            server.server = running
            yield server
    finally:
        shutil.rmtree(root)
