"""What a person can ask for: one module for each group of commands."""
