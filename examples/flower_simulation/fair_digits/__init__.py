"""Forty simulated phones classify digits: Flower's random selection compared with fair selection.

It needs `pip install 'turnout[flower-sim]'` and takes two minutes: `make flower-simulation`, or `make flower-async`
for the same phones without rounds.
"""
