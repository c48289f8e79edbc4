"""Benchmark of the engine's configuration."""
