"""`completion-server top`: a live view of servers in a terminal."""
