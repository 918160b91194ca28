"""What each page shows, as plain values: one function a page, and nothing of the web."""
