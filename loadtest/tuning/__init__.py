"""Finds the best number of speculative tokens (K) by batch size: measures a running server, chooses and verifies.

`blocks` and `choice` are pure; `replay` and `tuner` talk to the server.
"""
