"""Published policies by other authors."""
