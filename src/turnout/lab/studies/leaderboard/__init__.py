"""The leaderboard: every policy on the same worlds and seeds."""
