"""Long forms of what `make test` tries briefly. `make stress` runs them; `budgets.py` says how long."""
