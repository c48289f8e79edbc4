"""Parts that all rooms of the package share: errors, atomic files, and the presets."""
