"""Turns a request into token ids: by the family's template, within a budget, stable from key to key.

Knows requests, templates and tokenizers; must not know the engine, the schedule or the wire.
"""
