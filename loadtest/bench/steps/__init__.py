"""Benchmark of the engine's steps: their duration by generations and prompt tokens, for the simulation."""
