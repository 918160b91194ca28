"""Access to the service: tokens, callers and their roles, rate limits, and the checks of every request."""
