"""Drives targets: worker processes send a trace's requests at their times and record the answers."""
