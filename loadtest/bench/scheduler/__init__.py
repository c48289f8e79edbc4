"""Benchmark of the scheduler under typing traffic."""
