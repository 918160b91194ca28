"""What the HTTP servers of turnout share: limits of connections, security headers and checks of host names."""
