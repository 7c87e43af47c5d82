"""Agents, environments and credentials of the API: a module each, rules and rows, no HTTP."""
