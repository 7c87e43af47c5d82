"""What Corral adds to the documented API around whole sessions: fork, export, import, replay.

None of it changes what the documented paths mean (docs/extensions.md). A copy of a log is made here; how a
log is written, folded and continued is the session's and the brain's.
"""
