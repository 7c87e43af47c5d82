"""The scripted model: a Messages API server for tests and demonstrations that plays scripts named in
conversations.

It refuses what the real API refuses. It may not import the server, the brain or the hands; nothing in a
running server depends on it.
"""

from __future__ import annotations

from corral.testing.refusal import Refused
from corral.testing.scripted_model import ScriptedModel
from corral.testing.steps import ErrorPlan, Refusal, Script, Step, ToolCall

__all__ = ["ErrorPlan", "Refusal", "Refused", "Script", "ScriptedModel", "Step", "ToolCall"]
