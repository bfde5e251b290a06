"""Foreign clients behind one interface, so that one test can be run with each."""
