"""Model providers: one streaming interface over every Messages API endpoint, model ids and prices."""
