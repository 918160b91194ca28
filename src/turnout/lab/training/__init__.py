"""Real federated training: datasets, partitions, learners, and a world in which the selected clients train."""
