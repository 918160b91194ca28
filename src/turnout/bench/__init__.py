"""Speed, as ratios measured in one run: machines differ, and so does one machine from hour to hour."""
