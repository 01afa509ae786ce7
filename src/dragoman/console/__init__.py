"""What commands share: options, checks of paths, and output to a terminal."""
