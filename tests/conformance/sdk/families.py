"""The families of the API whose tests count, and their files below ``tests/api_resources/beta``.

Left out are the parts of the SDK that belong to the hosted service alone: organisations, compliance, Google
projects of user profiles, tunnels into a customer's network (docs/differences.md), and
the Messages API itself, which Corral calls and does not serve.
"""

from collections.abc import Mapping, Sequence
from typing import Final

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "agents": ("test_agents.py", "agents"),
    "environments": ("test_environments.py",),
    "work": ("environments",),
    "sessions": ("test_sessions.py",),
    "events": ("sessions/test_events.py",),
    "threads": ("sessions/test_threads.py", "sessions/threads"),
    "resources": ("sessions/test_resources.py",),
    "vaults": ("test_vaults.py", "vaults"),
    "memory_stores": ("test_memory_stores.py", "memory_stores"),
    "deployments": ("test_deployments.py", "test_deployment_runs.py"),
    "dreams": ("test_dreams.py",),
    "files": ("test_files.py",),
    "skills": ("test_skills.py", "skills"),
    "user_profiles": ("test_user_profiles.py", "user_profiles/test_action_urls.py"),
    "models": ("test_models.py",),
    "webhooks": ("test_webhooks.py",),
}

TYPESCRIPT_FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "agents": ("agents",),
    "environments": ("environments/environments.test.ts",),
    "work": ("environments/work.test.ts",),
    "sessions": ("sessions/sessions.test.ts",),
    "events": ("sessions/events.test.ts",),
    "threads": ("sessions/threads",),
    "resources": ("sessions/resources.test.ts",),
    "vaults": ("vaults",),
    "memory_stores": ("memory-stores",),
    "deployments": ("deployments.test.ts", "deployment-runs.test.ts"),
    "dreams": ("dreams.test.ts",),
    "files": ("files.test.ts",),
    "skills": ("skills",),
    "user_profiles": ("user-profiles.test.ts",),
    "models": ("models.test.ts",),
    "webhooks": ("webhooks.test.ts",),
}
"""The same, below ``tests/api-resources/beta`` of the TypeScript SDK."""


def chosen_files(families: Sequence[str], files: Mapping[str, tuple[str, ...]] = FAMILIES) -> list[str]:
    """The files and folders of these families; of all, if none is named."""
    return [path for name in families or files for path in files[name]]
