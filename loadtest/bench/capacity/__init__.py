"""Benchmark of the number of editors that a server keeps its promise to."""
