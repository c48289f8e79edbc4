"""Finds the best number of speculative tokens (K) by batch size: measures a running server, fits, chooses and verifies.

`blocks`, `fit` and `choice` are pure; `replay` and `tuner` talk to the server.
"""
