"""Trains and measures draft models and the embedded models: corpus, tokenizer, data, training, evaluation, export.

One pipeline trains every preset, from the embedded pair on two cores to `draft-1b` on many GPUs. Of the server it
imports three libraries: the core, the prompt builder, and the offline start of vLLM. Its output is a model folder in
the Hugging Face layout.
"""
