"""From a corpus to rows of tokens in the layouts that the server builds.

Knows corpora and tokenizers; must not know models or how they are trained.
"""
