"""Next edits: prompts in the form of the models that write them, and what an answer of theirs changes.

Knows requests and tokenizers; must not know the engine, the scheduler or the wire.
"""
