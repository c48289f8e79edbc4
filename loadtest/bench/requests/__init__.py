"""Measures the CPU time that the front end takes for a request, with gRPC and without it."""
