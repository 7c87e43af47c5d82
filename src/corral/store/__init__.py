"""PostgreSQL: pool, transactions, migrations, the embedded server.

SQL that belongs to one part of the house lives beside that part; here is only what all share.
"""
