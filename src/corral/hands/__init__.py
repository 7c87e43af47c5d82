"""The hands: the work queue on the server's side, and the worker with its sandboxes on the other.

Nothing here decides what an agent does next; it runs the tool calls that the brain has routed here.
"""
