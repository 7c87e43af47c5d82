"""What the Messages API refuses, a module per subject.

Each module checks one subject of a decoded request body and raises `Refused` with the path and the reason.
Nothing here plays a script, keeps state or does I/O.
"""
