"""Device traces, recorded or generated, and the world that plays them."""
