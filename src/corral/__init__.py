"""Corral: a self-hosted Managed Agents server.

The packages below follow DESIGN's house; ARCHITECTURE.md says what lives where.
"""

__version__ = "0.1.0"
