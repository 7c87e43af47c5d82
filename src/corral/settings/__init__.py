"""Settings: one YAML file, and ``CORRAL_<SECTION>__<KEY>`` from the environment, which wins.

Here is what can be set and how it is read; nothing here acts on a setting. Every description is written once,
in `sections`, and `corral.example.yaml` and `docs/settings.md` are made from it.
"""

from corral.settings.loading import Problem, SettingsError, load_settings
from corral.settings.sections import Brain, Files, Inference, Log, Server, Settings, Store, Vault, Worker

__all__ = [
    "Brain",
    "Files",
    "Inference",
    "Log",
    "Problem",
    "Server",
    "Settings",
    "SettingsError",
    "Store",
    "Vault",
    "Worker",
    "load_settings",
]
