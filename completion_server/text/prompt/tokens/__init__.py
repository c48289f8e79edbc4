"""Turns text into tokens: no text becomes a control token, and unchanged text is not tokenised again.

Knows tokenizers; must not know requests or layouts.
"""
