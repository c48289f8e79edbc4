"""Measures a GPU for the server's goals: does it work there, how fast is it, and how many editors does it serve."""
