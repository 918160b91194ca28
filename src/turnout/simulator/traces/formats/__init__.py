"""File formats of device traces."""
