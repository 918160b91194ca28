"""The doctor: checks the file of a fleet."""
