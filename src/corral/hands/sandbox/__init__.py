"""Sandboxes: where an agent's tools run, and the program that runs them there.

Here lives the outer end (providers) and, in `inside`, the program for the inner end. Nothing here knows the
work queue, the server or any credential.
"""
