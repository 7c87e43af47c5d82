"""Settings of what decides tool calls besides the agents' own policies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from corral.settings.section import Seconds, Section


class Policy(Section, frozen=True, kw_only=True):
    """Which tool calls may run (docs/policies.md)."""

    file: Annotated[
        str | None,
        Meta(
            description="A YAML file with the operator's rules for tool calls. It is read when the server "
            "starts; `corral policy check FILE` says beforehand whether it can be used.",
        ),
    ] = None
    judge: Annotated[
        bool,
        Meta(
            description="Whether a model judges the calls of tools whose policy is `auto`. Without it they "
            "all wait for a person."
        ),
    ] = True
    judge_model: Annotated[
        str | None,
        Meta(
            description="The model that judges. If it is not set: `claude-haiku-4-5` under `anthropic`; the "
            "agent's own model under `gateway`."
        ),
    ] = None
    judge_timeout_seconds: Annotated[
        Seconds, Meta(description="How long a judgement may take before the call waits for a person instead.")
    ] = 20.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Everything that is wrong with the file."""
        if self.file is None:
            return
        from corral.policy.loading import PolicyError, load_policy

        try:
            load_policy(Path(self.file))
        except PolicyError as error:
            for problem in error.problems:
                yield "file", f"{self.file}: {problem}"
