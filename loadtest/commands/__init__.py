"""The commands of `loadtest`, one module for each group."""
