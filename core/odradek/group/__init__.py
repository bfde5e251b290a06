"""Consumer groups, sans-IO: who is a member, who owns what, how far it was read."""
