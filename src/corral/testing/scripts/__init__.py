"""Scripts that come with the scripted model, by name. A script here is a Python function over a conversation.

They read the request and nothing else: no files, no clock, no state, so that a restart changes nothing.
"""

from __future__ import annotations

from corral.testing.scripts import converse, dream, repair
from corral.testing.steps import Playable

BUILT_IN: dict[str, Playable] = {"converse": converse.step, "dream": dream.step, "repair": repair.step}
