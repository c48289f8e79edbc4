"""A self-hosted serving backend for inline code completion."""

__version__ = "0.1.0"  # also completion_client.__version__ and the dependency on it in pyproject.toml
