"""The computations of one round on rows and arrays: turns owed, exchange times and the choice of a cohort.

`turnout` exports the values. Otherwise this package is private, except for `cohort.fastest_fair_cohort` and
`feasibility.largest_feasible_rate`.
"""
