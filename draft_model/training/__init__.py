"""Blocks of tokens in, weights out: network, optimiser, loss, checkpoints, processes, and what a run tells of itself.

Knows nothing of corpora or command lines.
"""
