"""Measures how good the answers are that a server shows."""
