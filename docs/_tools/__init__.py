"""Programs that check the built site."""
