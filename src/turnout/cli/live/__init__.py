"""Commands for live fleets."""
