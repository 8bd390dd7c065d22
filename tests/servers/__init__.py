"""Real object stores for the tests: built from their Go modules, started on this machine, stopped
and removed again.
"""
