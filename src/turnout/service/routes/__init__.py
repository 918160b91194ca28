"""The routes of the service, by resource: what each does, and which roles may use it."""
