"""Who must wake: publish and subscribe, in-process and across the servers of one database.

Best effort by design: a lost message costs time, never truth, since events are read from the log.
"""
