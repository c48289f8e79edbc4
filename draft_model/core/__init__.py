"""What all rooms of the package share: errors, files that appear whole, and the presets."""
