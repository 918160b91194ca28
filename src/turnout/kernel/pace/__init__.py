"""What FairPace computes: the price of a turn of each client, its usual time and its longest absence to expect.

This package is private.
"""
