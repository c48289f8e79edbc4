"""Drafts and the embedded models: corpus, tokenizer, fill-in-the-middle data, training, evaluation and export.

One pipeline trains every preset, from the embedded pair on two cores to `draft-1b` on many GPUs. Nothing here imports
the server: what they share is a folder in the Hugging Face layout, and the prompt layout that the server's prompt
command tells (`data/layouts.py`).
"""
