"""Scheduling: lanes, queues, slots and running generations. Knows no prompts and no wire."""
