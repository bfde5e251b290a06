"""Members of consumer groups, each in a process of its own, so that a test can kill it."""
