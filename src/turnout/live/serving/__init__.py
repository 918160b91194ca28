"""An open fleet: its file with its state in memory, and the servers that give turns in rounds or in slots.

The modules of this package are private.
"""
