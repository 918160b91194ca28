"""Forty simulated phones read digits: Flower's random choice beside a fair one."""
