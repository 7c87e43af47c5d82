"""`make demo-local`: a conversation with a real, tiny language model, compared token by token.

What lives here: the model's process, a proxy that records what it answers, the conversation, the comparison.
Nothing of Corral itself; nothing here is installed with it.
"""
