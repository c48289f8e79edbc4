"""Benchmark of the front end under ten thousand sessions."""
