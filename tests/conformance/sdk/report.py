"""What a run prints: failures with their reasons, then a table of families."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tests.conformance.sdk.verdicts import Test, Verdict

_REASON_CHARS: Final = 400
_NAME_CHARS: Final = 28


def print_report(tests: Sequence[Test], verdicts: Mapping[str, Verdict]) -> None:
    """Print each reason for a failure or an exclusion once, and what each family came to."""
    why: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for test in tests:
        verdict = verdicts[test.node_id]
        outcomes[test.family][verdict.outcome] += 1
        if verdict.outcome != "passed":
            why[verdict.outcome, _brief(verdict.why)][f"{test.family} {test.operation}"] += 1
    for (outcome, reason), operations in sorted(why.items(), key=lambda one: one[0]):
        print(f"{outcome.upper()} {operations.total()}: {reason}")
        for operation, count in operations.items() if outcome == "failed" else ():
            print(f"    {count:>3} x {operation}")
    print(f"{'':<{_NAME_CHARS}}{'passed':>8}{'failed':>8}{'excluded':>10}")
    for family, counts in outcomes.items():
        print(f"{family:<{_NAME_CHARS}}{counts['passed']:>8}{counts['failed']:>8}{counts['excluded']:>10}")


def _brief(why: str) -> str:
    """A failure's message on one line, without ids that differ from run to run."""
    line = " ".join(why.split())
    return re.sub(r"\b(req|[a-z]{3,8})_0[0-9A-Za-z]{10,}", r"\1_…", line)[:_REASON_CHARS]
