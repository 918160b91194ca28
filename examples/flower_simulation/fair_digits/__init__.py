"""Forty simulated phones classify digits: Flower's random selection compared with fair selection.

It needs `pip install '.[flower-sim]'` and takes two minutes: `python examples/run_flower.py simulation`,
or `async` for the same phones without rounds.
"""
