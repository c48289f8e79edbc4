"""The composition root: builds the parts of a server from its configuration, joins them, starts and stops them."""
