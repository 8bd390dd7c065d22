"""Whole programs on a simulated store: producers, readers and group members, and what befalls them."""
