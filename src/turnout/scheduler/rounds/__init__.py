"""Opening and closing rounds of a live fleet."""
