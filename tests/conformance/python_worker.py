"""The official worker as a program: serves the environment of its variables in the folder of its argument."""

import asyncio
import os
import sys

from anthropic import AsyncAnthropic


async def main() -> None:
    async with AsyncAnthropic(api_key="not-a-key") as client:
        await client.beta.environments.work.worker(
            environment_id=os.environ["ANTHROPIC_ENVIRONMENT_ID"],
            environment_key=os.environ["ANTHROPIC_ENVIRONMENT_KEY"],
            workdir=sys.argv[1],
        ).run()


asyncio.run(main())
