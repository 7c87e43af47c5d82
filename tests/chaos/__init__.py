"""Chaos: a whole Corral in processes of its own, killed at random while it works; see `run`."""
