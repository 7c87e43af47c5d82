"""``make fuzz``: the fuzzing for as long as is wanted, a new seed and a new world each round."""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

from corral.store.database import Database
from corral.store.embedded import EmbeddedPostgres
from corral.store.migrate import migrate
from tests.contract.conftest import running
from tests.fuzz.fuzzing import Fuzzer, in_order
from tests.populated import populated


async def round_of(url: str, seed: int, examples: int) -> tuple[Counter[int], list[str]]:
    """One round on the database: how many answers had which status, and what was wrong."""
    async with Database(url) as database, running(database) as api:
        fuzzer = Fuzzer(await populated(api), seed)
        found: list[str] = []
        for route in in_order():
            found += await asyncio.to_thread(fuzzer.faults, route, examples)
        return Counter(fuzzer.statuses), found


async def fuzz(minutes: float, seed: int, examples: int) -> int:
    """Rounds until the time is over, or one has found something; how many faults it was."""
    ends = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix="corral-fuzz-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL's own user enters it
        async with EmbeddedPostgres(Path(folder) / "data", settings={"fsync": "off"}) as server:
            async with Database(server.url) as database:
                await migrate(database)
            while True:
                statuses, found = await round_of(server.url, seed, examples)
                shown = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
                print(f"seed {seed}: {statuses.total()} requests ({shown}), {len(found)} faults", flush=True)
                if found:
                    print("\n".join(found))
                if found or time.monotonic() > ends:
                    return len(found)
                seed += 1


def main() -> None:
    """Read the command line and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="go on for so long [10]")
    parser.add_argument(
        "--seed", type=int, default=1, help="where to begin; the next round has the next one [1]"
    )
    parser.add_argument(
        "--examples", type=int, default=40, help="requests for each route and round, twice [40]"
    )
    given = parser.parse_args()
    raise SystemExit(1 if asyncio.run(fuzz(given.minutes, given.seed, given.examples)) else 0)


if __name__ == "__main__":
    main()
