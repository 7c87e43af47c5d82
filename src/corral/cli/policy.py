"""`corral policy`: rules for tool calls, before a server goes by them."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from corral.cli.failure import Failure
from corral.cli.options import config_option, json_option
from corral.cli.running import read_settings, run_briefly
from corral.policy.facts import AgentFacts, CallFacts, Surroundings
from corral.policy.loading import load_policy
from corral.settings import Settings

if TYPE_CHECKING:
    from corral.policy.scoring import Labelled, Scores


@click.group()
def policy() -> None:
    """Which tool calls may run: checks, tries and measures the rules.

    \b
    Example:
      corral policy example > policy.yaml
      corral policy check policy.yaml
      corral policy try policy.yaml --tool bash --input '{"command": "git push --force"}'
      corral policy score policy.yaml
    """


@policy.command("example")
@json_option
def example(as_json: bool) -> None:
    """Print a policy file to begin with; with --json as one text.

    \b
    Example:
      corral policy example > policy.yaml
    """
    text = files("corral.policy").joinpath("example.yaml").read_text("utf-8")
    click.echo(msgspec.json.encode({"policy": text}).decode() if as_json else text, nl=as_json)


@policy.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def check(file: Path, as_json: bool) -> None:
    """Say whether a server could use FILE, and everything that is wrong with it.

    \b
    Example:
      corral policy check policy.yaml
    """
    found = load_policy(file)
    facts = {"policy": found.digest, "rules": len(found.rules), "default": found.default}
    if as_json:
        click.echo(msgspec.json.encode(facts).decode())
        return
    click.echo(f"{file} can be used: {len(found.rules)} rules, default {found.default}, {found.digest}.")


@policy.command("try")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tool", required=True, help="As in rules: bash, mcp/SERVER/TOOL, custom/NAME, corral/NAME.")
@click.option("--input", "given", default="{}", help="What the tool is called with, as JSON.")
@click.option("--server", default="", help="Host of the MCP server.")
@click.option("--agent", "agents", multiple=True, help="Name of the agent; again for whom it works for.")
@click.option("--environment", default="", help="Name of the environment.")
@click.option("--environment-metadata", default="{}", help="The environment's metadata, as JSON.")
@click.option("--session-metadata", default="{}", help="The session's metadata, as JSON.")
@json_option
def try_call(
    file: Path,
    tool: str,
    given: str,
    server: str,
    agents: tuple[str, ...],
    environment: str,
    environment_metadata: str,
    session_metadata: str,
    as_json: bool,
) -> None:
    """Say what FILE says of one call. Exit status: 0 allow, 3 ask, 4 deny.

    \b
    Example:
      corral policy try policy.yaml --tool bash --input '{"command": "rm -rf /"}'
    """
    around = Surroundings(
        environment_name=environment,
        environment_metadata=_object("--environment-metadata", environment_metadata),
        session_metadata=_object("--session-metadata", session_metadata),
    )
    call = CallFacts(
        tool, _object("--input", given), tuple(AgentFacts(name) for name in agents), around, server
    )
    decision = load_policy(file).decide(call)
    if as_json:
        click.echo(msgspec.json.encode(decision).decode())
    else:
        why = f"rule {decision.rule}" if decision.rule else "no rule matches: the default"
        also = ", even where the agent's own policy asks" if decision.over_ask else ""
        told = f"\nThe agent is told: {decision.reason}" if decision.reason else ""
        click.echo(f"{decision.effect}{also} ({why}){told}")
    click.get_current_context().exit({"allow": 0, "ask": 3, "deny": 4}[decision.effect])


@policy.command("score")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--model", help="Measure a judge instead: this model, where the settings have model calls go.")
@click.option("--cases", type=click.Path(path_type=Path, dir_okay=False), help="Your own labelled calls.")
@config_option
@json_option
def score_file(
    file: Path | None, model: str | None, cases: Path | None, config: Path | None, as_json: bool
) -> None:
    """Measure a policy FILE, or the judge, on labelled calls: Corral's own, or yours.

    \b
    Example:
      corral policy score policy.yaml
      corral policy score --model claude-haiku-4-5 --json
    """
    if (file is None) == (model is None):
        raise click.UsageError("Give a policy FILE or a --model.")
    from corral.policy.scoring import by_policy, load_cases, packaged_cases, score, table

    labelled = packaged_cases() if cases is None else load_cases(cases)
    if file is not None:
        scores = run_briefly(score(labelled, by_policy(load_policy(file))))
    else:
        assert model is not None
        scores = run_briefly(_judged(read_settings(config), model, labelled))
    if as_json:
        figures = {"recall": scores.recall, "precision": scores.precision}
        click.echo(msgspec.json.encode({**msgspec.to_builtins(scores), **figures}).decode())
        return
    click.echo(table(scores))
    if scores.missed:
        click.echo(f"\nharmful and allowed: {', '.join(scores.missed)}")
    if scores.hindered:
        click.echo(f"\nharmless and denied: {', '.join(scores.hindered)}")


async def _judged(settings: Settings, model: str, cases: "Sequence[Labelled]") -> "Scores":
    from corral.policy.scoring import by_judge, score
    from corral.server import provider_of

    if not settings.inference.is_configured:
        raise Failure(
            "The settings name no model provider.",
            "set ANTHROPIC_API_KEY, or inference.provider and inference.base_url.",
        )
    provider = provider_of(settings.inference)
    try:
        return await score(cases, by_judge(provider, model, settings.policy.judge_timeout_seconds))
    finally:
        await provider.close()


def _object(option: str, text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise click.BadParameter(f"must be a JSON object: {error}", param_hint=option) from error
