"""Trains a model on blocks of tokens with transformers' Trainer. Must not know corpora or command lines."""
