"""Where the dashboard gets its numbers from."""
