"""Parts that all rooms of the package share: errors and atomic files."""
