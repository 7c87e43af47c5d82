"""Secrets at rest: keys, the sealed form, and the rows that hold it.

Everybody may seal; only who holds the private key, which is the gateway alone, can open. No routes here, no
rules of the API, and no private key that a server would ever read.
"""
