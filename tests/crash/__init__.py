"""Real processes that are killed, stopped and started again while they produce and consume, and stores that are."""
