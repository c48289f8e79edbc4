"""The commands that talk to a running server. Knows the wire and nothing of the rooms behind it."""
