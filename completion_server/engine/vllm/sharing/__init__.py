"""One engine core with several clients: the server's parent process, and a front end at each place."""
