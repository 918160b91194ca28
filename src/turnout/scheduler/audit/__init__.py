"""Audits of a live fleet: certificates and their verifier, explanations, and checks of its file."""
