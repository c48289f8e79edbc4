"""What all rooms of the package share: errors, and files that appear whole."""
