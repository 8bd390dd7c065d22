"""What a run must have kept: the logs entry by entry, and what the clients did and saw."""
