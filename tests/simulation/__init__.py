"""Simulation tests: producers, readers and group members on a simulated store, with injected
faults.
"""
