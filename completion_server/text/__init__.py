"""Text: the prompt of a request, and what of the generated text may be shown."""
