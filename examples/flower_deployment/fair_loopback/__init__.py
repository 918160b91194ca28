"""SuperNodes with configured speeds as processes on one machine; one is killed while it trains, and one joins.

It needs `pip install '.[flower]'` and takes two minutes: `python examples/run_flower.py deployment`.
"""
