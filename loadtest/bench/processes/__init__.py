"""One engine, several front ends: what they serve, and what users notice when one dies or all are replaced."""
