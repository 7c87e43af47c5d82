"""THE SESSION: the log (append, replay, follow), its state folded from events, and its rules.

Whoever wants to change a session appends to its log here. Nothing here calls a model or runs a tool.
"""
