"""Commands about live fleets and recorded rounds."""
