"""The experiments of the paper, and studies of this project in the paper's world."""
