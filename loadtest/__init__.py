"""Simulated editors and benchmarks."""
