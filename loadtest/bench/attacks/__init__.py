"""Attacks on a running server, and their effect on honest users: `python -m loadtest.bench.attacks`."""
