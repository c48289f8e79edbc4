"""Benchmarks of this project's server. Each is a command that prints its figures and ends with one JSON object."""
