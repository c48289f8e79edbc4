"""The embedded models: corpus, tokenizer, fill-in-the-middle training, evaluation and export.

One pipeline trains both presets, the target and its draft, because they must share a tokenizer and a prompt layout.
Nothing here knows the server; what the two share is a folder in the Hugging Face layout and the prompt layout in
`fim.py`.
"""
