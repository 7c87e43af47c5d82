"""Benchmarks: one runnable file per question, each answered by a ratio within one run on one machine.

``make bench`` runs all of them and writes the table of docs/performance.md; ``python -m benchmarks.turns``
and the like run one. Corral always runs as it is run in production: a `corral serve` process on a PostgreSQL
that syncs every commit to disk, spoken to over loopback.
"""
