"""Sends a schedule's requests at their times, by several processes, and adds up what came back."""
