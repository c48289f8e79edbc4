"""Local processes: starts and stops them, measures them, reads their Prometheus counters."""
