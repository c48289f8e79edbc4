"""Capacity and cost, in `calculation`; the command is `completion-server plan`, which needs no extra."""
