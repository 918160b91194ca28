"""Commands about plug-ins."""
