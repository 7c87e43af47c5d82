"""Settings: one YAML file, and ``CORRAL_<SECTION>__<KEY>`` from the environment, which wins.

Here is what can be set and how it is read; nothing here acts on a setting. Every description is written once,
in the sections here, and `corral.example.yaml` and `docs/settings.md` are made from it.
"""

from corral.settings.loading import Problem, SettingsError, load_settings
from corral.settings.sections import (
    Brain,
    Chain,
    Dreams,
    Files,
    Gateway,
    Inference,
    Limits,
    Load,
    Log,
    Outcomes,
    Policy,
    SecretManager,
    Server,
    Settings,
    Store,
    Vault,
    Webhooks,
    Worker,
)

__all__ = [
    "Brain",
    "Chain",
    "Dreams",
    "Files",
    "Gateway",
    "Inference",
    "Limits",
    "Load",
    "Log",
    "Outcomes",
    "Policy",
    "Problem",
    "SecretManager",
    "Server",
    "Settings",
    "SettingsError",
    "Store",
    "Vault",
    "Webhooks",
    "Worker",
    "load_settings",
]
