"""Upstream's own tests, run on deltaq. Nothing of them is in this repository:
`python -m tests.upstream CHECKOUT` takes a clone of confluent-kafka-python or of kombu.
"""
