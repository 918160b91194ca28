"""Audits of a live fleet: certificates, verification, explanations, doctor."""
