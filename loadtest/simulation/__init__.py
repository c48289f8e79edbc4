"""Compares scheduling policies in virtual time: simulated editors, the server's real scheduler, a timed engine.

Knows the server from its service down; knows neither the wire nor the configuration.
"""
