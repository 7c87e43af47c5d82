"""Which tool calls may run: the operator's policy file, and the judge of agents whose policy is `auto`.

Rules, patterns, prompts and their measuring. What is decided here is carried out by the brain
(`corral.brain.clearance`), which records each decision in the log. No database, no session state.
"""
