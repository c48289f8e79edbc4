"""From an engine's text to what an editor is sent: when to stop, what to trim, and a mailbox for slow readers.

Knows requests and events alone: no engine, no wire, no clock.
"""
