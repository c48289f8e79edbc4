"""Benchmark of the embedded models."""
