"""What a run prints: failures with their reasons, then a table of families."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tests.conformance.sdk.verdicts import Test, Verdict

_REASON_CHARS: Final = 400
_NAME_CHARS: Final = 28


def print_report(tests: Sequence[Test], verdicts: Mapping[str, Verdict]) -> None:
    """Print what failed, operations together, and what each family came to."""
    failures: dict[tuple[str, str, str], int] = Counter()
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[str] = Counter()
    for test in tests:
        verdict = verdicts[test.node_id]
        outcomes[test.family][verdict.outcome] += 1
        if verdict.outcome == "failed":
            failures[test.family, test.operation, _brief(verdict.why)] += 1
        if verdict.outcome == "excluded":
            reasons[verdict.why] += 1
    for (family, operation, why), count in failures.items():
        print(f"FAILED {count} x {family} {operation}\n       {why}")
    for why, count in reasons.items():
        print(f"EXCLUDED {count}: {why}")
    print(f"{'':<{_NAME_CHARS}}{'passed':>8}{'failed':>8}{'excluded':>10}")
    for family, counts in outcomes.items():
        print(f"{family:<{_NAME_CHARS}}{counts['passed']:>8}{counts['failed']:>8}{counts['excluded']:>10}")


def _brief(why: str) -> str:
    """A failure's message on one line, without ids that differ from run to run."""
    line = " ".join(why.split())
    return re.sub(r"\b(req|[a-z]{3,8})_0[0-9A-Za-z]{10,}", r"\1_…", line)[:_REASON_CHARS]
