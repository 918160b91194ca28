"""Integrations with federated-learning frameworks.

Each framework needs its own optional extra; no adapter imports another one. `common` has what several of them need.
"""
