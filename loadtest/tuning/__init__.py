"""Which draft length pays at which batch size: measured on a running server, fitted, chosen, and checked again.

`blocks`, `plan`, `statistics`, `fit`, `choice` and `verdict` are pure; `replay` and `tuner` talk to the server.
"""
