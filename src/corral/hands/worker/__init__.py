"""The worker: claims work items over HTTP, runs their sandbox calls, posts the results.

It knows the server by the documented work API alone and holds the only credential; nothing of the server's
inside (brain, session, store, api) and no inference client may be imported here.
"""

from corral.hands.worker.failures import CredentialRefused, WorkerError, WorkerMisconfigured
from corral.hands.worker.run import run_worker

__all__ = ["CredentialRefused", "WorkerError", "WorkerMisconfigured", "run_worker"]
