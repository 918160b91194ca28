"""RBCS-F: the policy and its extensions."""
