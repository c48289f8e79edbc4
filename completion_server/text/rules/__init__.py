"""Turns the engine's text into the text that an editor shows: stop rules and trimming.

Imports only `core`: no engine, no wire, no clock.
"""
