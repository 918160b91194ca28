"""Studies of FairPace, which the paper does not have."""
