"""Crash tests: real processes, and stores, that are killed, stopped and restarted while clients
produce and consume.
"""
