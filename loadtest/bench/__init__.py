"""Benchmarks of this project's own server: each a command that prints its figures and ends with one JSON object."""
