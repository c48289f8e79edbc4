"""What the book knows of its live requests: records, lanes, flights and deadlines. Pure."""
