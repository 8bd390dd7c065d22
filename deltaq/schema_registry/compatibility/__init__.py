"""Which schemas may follow which: the levels, and the rules of each format."""
