"""Cuts a corpus into rows of tokens in the templates that the server uses.

Knows corpora and tokenizers; must not know models or training.
"""
