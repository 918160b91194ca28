"""The journal of a live fleet: its file, its replay, its reader."""
