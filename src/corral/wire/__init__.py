"""The contract: request and response models, ids, errors, pagination, times.

No I/O lives here, and nothing here knows of the database, the brain or HTTP routing.
"""
