"""The attacks, one module each."""
