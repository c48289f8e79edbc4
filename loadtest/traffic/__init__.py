"""Traffic: makes the whole trace of a scenario's requests before a run. Pure; knows no target."""
