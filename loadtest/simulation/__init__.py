"""People who type, the real scheduler, and an engine that only takes time, in virtual time: which policy serves best.

Knows the rooms from `pipeline` down; knows neither the wire nor the configuration.
"""
