"""The mathematics of one round, on rows and arrays: what is owed, how long it takes, who should go."""
