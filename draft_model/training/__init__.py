"""Trains a model on blocks of tokens: loop, optimiser, loss, checkpoints, processes, and the records of a run.

Must not know corpora or command lines.
"""
