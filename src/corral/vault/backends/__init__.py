"""Secret managers that new secrets may live in, instead of sealed in the database: one module for each.

A server writes and removes with a credential of its own that need not read; the gateway reads. No routes, no
rules of the API, and nothing of a secret in an error or a log line.
"""
