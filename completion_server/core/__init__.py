"""What all rooms speak: requests, events, outcomes, errors and time. Imports nothing above it."""
