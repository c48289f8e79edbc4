"""Attacks on a running server, and their effect on honest users: `python -m loadtest.bench.attacks`.

Each attack is a class in `kinds.py`, and runs in a child process from an address of
its own (127.0.0.2), so that limits for each peer can tell it from the honest users.
"""
