"""THE HARNESS: claim a session, decide (pure), act, append what happened.

It holds nothing that must survive: kill it anywhere, and another continues from the log.
"""
