"""Benchmarks of speculative decoding."""
