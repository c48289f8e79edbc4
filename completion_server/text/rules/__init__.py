"""Turns the engine's text into the text that an editor shows: stop rules, trimming, and a mailbox for slow readers.

Imports only `core`: no engine, no wire, no clock.
"""
