"""SuperNodes with configured speeds on one machine."""
