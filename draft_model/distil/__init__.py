"""Text that a target writes for its draft to learn from."""
