"""The computations of one round on rows and arrays: turns owed, exchange times and the choice of a cohort."""
