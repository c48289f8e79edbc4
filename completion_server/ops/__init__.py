"""Metrics and logs for operators. Parts emit events; only the composition root connects them to this package."""
