"""Who types what and when: from a scenario to the whole schedule, before anything runs. Pure; knows no target."""
