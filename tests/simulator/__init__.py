"""Deterministic simulation: deltaq's own blocking code on threads that a seeded scheduler runs one
at a time, on simulated time.
"""
