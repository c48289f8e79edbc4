"""Runs a benchmark: its command, its contestants and their turns, its workload, its figures and its document."""
