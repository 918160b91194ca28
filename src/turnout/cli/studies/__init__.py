"""Commands for studies and training."""
