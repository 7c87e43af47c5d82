"""The program that runs inside a sandbox and executes the agent's tools.

Standard library only, Python 3.8 or later, nothing of Corral imported: it is packed into one archive and
handed to the sandbox. It holds no credential and trusts nothing that the agent's commands leave behind.
"""
