"""Benchmark of the server's overhead over its engine."""
