"""Repeated runs of a scenario: capacity search and sweeps. Does not know how a run is driven."""
