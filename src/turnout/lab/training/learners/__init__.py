"""Learners: models and the code that trains them."""
