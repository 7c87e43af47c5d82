"""PostgreSQL refuses to look into JSON that holds NUL, which what a model says may: see `readable`."""

import re
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[3] / "src" / "corral"
_OF_RESOURCES: Final = {"memory_store_id", "url", "access"}
"""Fields of `session_resources.body`, which clients give: text at the door has no NUL."""
_LOOK: Final = re.compile(r"\b(?:body|private)(?:::json)? *(?:->>?|#>>?) *'\{?([a-z_]*)")


def test_no_statement_looks_into_the_log_but_through_readable() -> None:
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]
    found = [
        f"{file.relative_to(SOURCE)}: {look.group()}"
        for file in files
        for look in _LOOK.finditer(file.read_text("utf-8"))
        # What an applied migration said was mended by a later one.
        if look.group(1) not in _OF_RESOURCES and file.name != "0010_pre_webhooks.sql"
    ]
    assert len(files) > 200
    assert found == []
