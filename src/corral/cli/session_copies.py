"""`corral session fork|export|import|verify|replay`: the extensions around whole sessions, in a terminal."""

import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from corral.cli.api_client import ApiClient
from corral.cli.connection import Asked, connection_options
from corral.cli.failure import Failure
from corral.cli.options import json_option
from corral.cli.running import run_briefly

if TYPE_CHECKING:
    from corral.extensions.inspecting import Inspected

FOUND: Final = 3
"""Exit status of a command that looked, and found a change or a difference."""
_PIECE: Final = 256 * 1024
_STEP: Final = 8 * 1024 * 1024
_EVENTS_STEP: Final = 5_000

_source: Any = click.argument("source", metavar="ID|FILE")


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    return json_option(connection_options(command))


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--at", "event_id", metavar="EVENT", help="The last event of the copy.  [default: the newest]")
@click.option("--title", help="Its title.  [default: the same]")
@click.option(
    "--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="In place of its own; repeatable."
)
@_shared
def fork(
    session_id: str,
    event_id: str | None,
    title: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
    asked: Asked,
) -> None:
    """Make a session whose history is a copy of another one's, up to any event.

    What was under way there is closed in the copy, and its usage counts from zero. The workspace of the
    sandbox is not copied; the files that are mounted are.

    \b
    Example:
      corral session fork sesn_01ABC --at sevt_01DEF --title "another way"
    """
    body: dict[str, Any] = {}
    if event_id is not None:
        body["event_id"] = event_id
    if title is not None:
        body["title"] = title
    if pairs:
        body["metadata"] = dict(_pair(pair) for pair in pairs)
    made = _run(asked, lambda api: api.post(f"/v1/sessions/{session_id}/fork", body))
    if as_json:
        _print(made)
    else:
        click.echo(f"{made['id']} begins as {session_id} did. `corral chat --session {made['id']}` goes on.")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--metadata takes KEY=VALUE, not {text!r}.")
    return key, value


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--to", type=click.Path(path_type=Path, dir_okay=False), help="[default: ID.tar.gz here]")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@_shared
def export(session_id: str, to: Path | None, force: bool, as_json: bool, asked: Asked) -> None:
    """Write a session with its history and its files into one file.

    No secret is in it; everything that was said and done in the session is.

    \b
    Example:
      corral session export sesn_01ABC --to incident.tar.gz
    """
    path = to or Path(f"{session_id}.tar.gz")
    if path.exists() and not force:
        raise Failure(f"{path} is there already.", "name another with --to, or add --force.")
    size = _run(asked, lambda api: _save(api, session_id, path))
    if as_json:
        _print({"session_id": session_id, "file": str(path), "size_bytes": size})
    else:
        click.echo(f"{path}: {size} bytes. `corral session import {path}` brings it to another server.")


async def _save(api: ApiClient, session_id: str, path: Path) -> int:
    """Download a session; a file that is whole, or none."""
    draft = path.with_name(f".{path.name}.part")
    size = 0
    try:
        with draft.open("wb") as file:
            draft.chmod(0o600)
            async for piece in api.download(f"/v1/sessions/{session_id}/export"):
                file.write(piece)
                _progress(size, size + len(piece), _STEP, "bytes received")
                size += len(piece)
        draft.replace(path)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return size


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--environment", "environment_id", help="Where it goes.  [default: the one that it was in]")
@click.option("--vault", "vault_ids", multiple=True, help="A vault that it gets; repeatable.")
@_shared
def import_(
    file: Path, environment_id: str | None, vault_ids: tuple[str, ...], as_json: bool, asked: Asked
) -> None:
    """Make a session of an exported file: under new ids, idle, and with nothing under way.

    The file is looked through first; what no server would have written is refused.

    \b
    Example:
      corral session import incident.tar.gz --environment env_01ABC
    """
    query: dict[str, Any] = {}
    if environment_id is not None:
        query["environment_id"] = environment_id
    if vault_ids:
        query["vault_ids[]"] = list(vault_ids)

    async def bring(api: ApiClient) -> tuple[dict[str, Any], dict[str, Any]]:
        made = await api.upload("/v1/sessions/import", _pieces(file), **query)
        return made, await api.get(f"/v1/sessions/{made['id']}/origin")

    made, origin = _run(asked, bring)
    if as_json:
        _print({**made, "origin": origin["origin"]})
        return
    click.echo(f"{made['id']} is {origin['origin']['session_id']} as the file has it.")
    for line in origin["origin"]["left_out"]:
        click.echo(f"  left out: {line}")


async def _pieces(path: Path) -> AsyncGenerator[bytes]:
    sent = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            _progress(sent, sent + len(piece), _STEP, "bytes sent")
            sent += len(piece)
            yield piece


@click.command()
@_source
@click.option(
    "--head", metavar="SEQ:LINK", help="A head that was kept; the history up to there must lead to it."
)
@click.option("--public-key", metavar="KEY", help="Of a FILE: who must have signed it.")
@_shared
def verify(source: str, head: str | None, public_key: str | None, as_json: bool, asked: Asked) -> None:
    """Say whether a session's history is what was written, by its chain; if not, which event is the first
    one.

    A session is verified by its server, with its seals; a file here, without any server. Keep the head that
    is printed elsewhere: it shows later whether anything before it was changed. Exits with 3 if anything was.

    \b
    Example:
      corral session verify sesn_01ABC --head 120:9f86d0…
    """
    if _is_file(source):
        report = _verified_file(Path(source), head, public_key)
    elif public_key is not None:
        raise click.UsageError("--public-key is for a file; the server holds seals against its own keys.")
    else:
        query = {} if head is None else {"head": head}
        report = _run(asked, lambda api: api.get(f"/v1/sessions/{source}/verify", **query))
    if as_json:
        _print(report)
    else:
        _tell_verified(report)
    sys.exit(0 if report["intact"] else FOUND)


def _inspected(file: IO[bytes], watch: int | None = None) -> "Inspected":
    """What is in a file; raises `Failure` if it is none of an export."""
    from corral.extensions.inspecting import inspect
    from corral.wire.errors import ApiError

    try:
        return inspect(file, watch=watch)
    except ApiError as error:
        raise Failure(error.message) from error


def _verified_file(path: Path, head: str | None, public_key: str | None) -> dict[str, Any]:
    from corral.session.seals import VerifyKey
    from corral.wire.chain import parse_head
    from corral.wire.errors import InvalidRequest

    try:
        kept = None if head is None else parse_head(head)
        key = None if public_key is None else VerifyKey.parse(public_key)
    except (InvalidRequest, ValueError) as error:
        raise Failure(str(error)) from error
    with path.open("rb") as file:
        found = _inspected(file, None if kept is None else kept.seq)
    signed_by = None if found.signed_by is None else found.signed_by.text
    problem = None
    if found.problem is not None:
        problem = msgspec.to_builtins(found.problem)
    elif kept is not None and found.heads.get(kept.seq, b"").hex() != kept.head:
        message = f"the log up to event {kept.seq} does not lead to the head that was kept"
        problem = {"kind": "head", "seq": min(kept.seq, found.events), "event_id": None, "message": message}
    elif key is not None and key.text != signed_by:
        who = "nobody" if signed_by is None else signed_by
        message = f"the file is signed by {who}"
        problem = {"kind": "signature", "seq": None, "event_id": None, "message": message}
    link = None if found.head is None else found.head.hex()
    return {
        "session_id": found.session.id,
        "intact": problem is None,
        "events": found.events,
        "head": {"seq": found.events, "head": link or ""},
        "signed_by": signed_by,
        "problem": problem,
    }


def _tell_verified(report: dict[str, Any]) -> None:
    head = report["head"]
    if report["intact"]:
        click.echo(f"Intact: {report['events']} events.")
        if "sealed_through" in report:
            how = "signed seals" if report["signed"] else "seals without a signature (chain.signing_key)"
            click.echo(f"Sealed up to event {report['sealed_through']}, by {how}.")
        elif report["signed_by"]:
            click.echo(f"Signed by {report['signed_by']}.")
        if head["head"]:
            click.echo(f"Head: {head['seq']}:{head['head']}")
        return
    problem = report["problem"]
    where = "" if problem["seq"] is None else f" at event {problem['seq']}"
    which = f" ({problem['event_id']})" if problem["event_id"] else ""
    click.secho(f"Not intact{where}{which}: {problem['message']}.", fg="red")


@click.command()
@_source
@_shared
def replay(source: str, as_json: bool, asked: Asked) -> None:
    """Replay a session on the recorded answers of its model: would this version of Corral have acted alike?

    Nothing outside is touched: no model, no tool, no database. Shows the first difference, in what would be
    written or in what the model would be asked. Exits with 3 if there is one.

    \b
    Example:
      corral session replay sesn_01ABC
      corral session replay incident.tar.gz --json
    """
    import tempfile

    if _is_file(source):
        report = _replayed(Path(source))
    else:
        with tempfile.TemporaryDirectory(prefix="corral-replay-") as folder:
            path = Path(folder) / "session.tar.gz"
            _run(asked, lambda api: _save(api, source, path))
            report = _replayed(path)
    if as_json:
        _print(report)
    else:
        _tell_replayed(report)
    sys.exit(0 if report["difference"] is None else FOUND)


def _replayed(path: Path) -> dict[str, Any]:
    from corral.extensions.recorded import RecordedSession
    from corral.extensions.replaying import Replay

    with path.open("rb") as file:
        found = _inspected(file)
        if found.problem is not None:
            raise Failure(
                f"The history is not what was written: {found.problem.message}.",
                f"`corral session verify {path}` looks closer; a replay of it would say nothing.",
            )
        session = RecordedSession(file, found)

    def progress(done: int) -> None:
        _progress(done - 1, done, _EVENTS_STEP, f"of {len(session.events)} events")

    return msgspec.to_builtins(run_briefly(Replay(session, progress).run()))


def _tell_replayed(report: dict[str, Any]) -> None:
    from corral.cli.printable import printable

    versions = f"recorded by Corral {report['recorded_by']}, replayed by {report['replayed_by']}"
    difference = report["difference"]
    if difference is None:
        click.echo(f"Alike: {report['events']} events, {report['requests']} model requests ({versions}).")
        if report["unknown_requests"]:
            click.echo(f"Of {report['unknown_requests']} more requests it is not recorded what was asked.")
        return
    click.secho(f"Differs at event {difference['seq']}: {difference['what']} ({versions}).", fg="yellow")
    for name, shown in (("recorded", difference["recorded"]), ("now", difference["now"])):
        click.echo(f"  {name}: {printable(msgspec.json.encode(shown).decode())}")


def _is_file(source: str) -> bool:
    """Whether a file is meant, and not a session."""
    if Path(source).is_file():
        return True
    if source.startswith("sesn_"):
        return False
    raise Failure(f"{source} is no id of a session, and there is no file of this name.")


def _progress(before: int, after: int, step: int, what: str) -> None:
    """Tell a person at a terminal how far a long operation has come."""
    if after // step > before // step and sys.stderr.isatty():
        click.echo(f"{after} {what}", err=True)


def _run(asked: Asked, work: Callable[[ApiClient], Any]) -> Any:
    async def run() -> Any:
        connection = asked.connection()
        async with ApiClient(connection.base_url, connection.api_key) as api:
            return await work(api)

    return run_briefly(run())


def _print(value: object) -> None:
    click.echo(msgspec.json.encode(value))
