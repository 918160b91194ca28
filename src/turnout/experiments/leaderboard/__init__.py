"""The leaderboard of policies."""
