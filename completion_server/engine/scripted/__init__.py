"""A deterministic engine with a model of service times, for tests and capacity runs."""
