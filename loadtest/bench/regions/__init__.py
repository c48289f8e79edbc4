"""Measures what users notice when the nearest of three regions is lost, and when it comes back."""
