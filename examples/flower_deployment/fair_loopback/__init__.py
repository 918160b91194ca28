"""SuperNodes on one machine, each as slow as it was told to be."""
