"""Limits of rates and of open sessions for each key: those of this process, or shared with other replicas. Pure."""
