"""Real training: datasets, who holds what, learners."""
