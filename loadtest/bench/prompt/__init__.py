"""Benchmarks of the prompt layout against a simulated prefix cache."""
