"""Background jobs: what has to happen without a request, on procrastinate over the same database.

Here is how jobs are kept, taken up and repeated; what they do is handed in by the composition root.
"""
