"""The worker of `corral up`: a process of its own, kept alive, bound to ours.

Its keys reach it through the environment, never through arguments, which every user of a machine can read.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from corral.cli.child_process import ChildProcess
from corral.cli.failure import CANNOT_SANDBOX
from corral.settings import Settings
from corral.wire.secret import Secret

_NO_SANDBOX: Final = (
    "the worker has no working sandbox: sessions run, but their tools do not. Follow its advice above and "
    "start Corral again"
)


class WorkerProcess(ChildProcess):
    """A `corral worker` that is started again whenever it dies, except for want of a sandbox."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__("worker", ["worker"], environment, hopeless={CANNOT_SANDBOX: _NO_SANDBOX})


def worker_environment(
    environ: Mapping[str, str], settings: Settings, base_url: str, pool_key: Secret, workspace_dir: str
) -> dict[str, str]:
    """The variables of a worker for ``base_url``: ours, without the server's credentials, with its own."""
    ours = {name: value for name, value in environ.items() if not name.startswith(("CORRAL_", "ANTHROPIC_"))}
    worker = settings.worker
    return {
        **ours,
        "CORRAL_WORKER__BASE_URL": base_url,
        "CORRAL_WORKER__POOL_KEY": pool_key.reveal(),
        "CORRAL_WORKER__WORKSPACE_DIR": worker.workspace_dir or workspace_dir,
        "CORRAL_WORKER__SANDBOX": worker.sandbox,
        "CORRAL_WORKER__MAX_SESSIONS": str(worker.max_sessions),
        "CORRAL_WORKER__SANDBOX_IDLE_SECONDS": str(worker.sandbox_idle_seconds),
        "CORRAL_WORKER__SANDBOXES_WAITING": str(worker.sandboxes_waiting),
        "CORRAL_WORKER__SESSION_IDLE_SECONDS": str(worker.session_idle_seconds),
        **{
            f"CORRAL_LIMITS__{name.upper()}": str(value)
            for name, value in structs.asdict(settings.limits).items()
            if value is not None
        },
        "CORRAL_LOG__LEVEL": settings.log.level,
        "CORRAL_LOG__FORMAT": settings.log.format,
    }
