"""Newest wins across replicas: the order of requests that all replicas share, and what each knows of its lanes."""
