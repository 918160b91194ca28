"""Forty simulated phones classify digits: Flower's random selection compared with fair selection."""
