"""What several adapters share. This package is private."""
