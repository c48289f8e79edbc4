"""Measures the cost of training `draft-1b` and of decoding with a 13B INT8 target on one GPU.

Needs no weights and no data: it trains on random tokens, and vLLM makes the weights up.
"""
