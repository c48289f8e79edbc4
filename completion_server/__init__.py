"""A self-hosted serving backend for inline code completion."""

__version__ = "0.1.0"
