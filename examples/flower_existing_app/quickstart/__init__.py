"""An ordinary Flower app, which knows nothing of turnout; `fair.diff` is the change that makes its selection fair.

It needs `pip install '.[flower-sim]'` and takes a minute: `python examples/run_flower.py existing-app`.
"""
