"""The gateway: the only process that opens secrets, and the agents' only way to other machines.

It speaks to MCP servers for brains and carries the traffic of sandboxes, puts credentials in where they
belong, and hands none of them to anybody. Nothing of the API is served here, and no model is called.
"""
