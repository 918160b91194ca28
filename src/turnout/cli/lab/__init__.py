"""Commands for simulations, their runs and their traces."""
