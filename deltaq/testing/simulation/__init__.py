"""Many clients, one seed: deltaq's own blocking code on threads that take turns, on simulated time."""
