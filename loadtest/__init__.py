"""The load tester: simulated editors, the benchmarks, and a simulation of the scheduler in virtual time."""
