"""Test doubles and helpers for the tests of deltaq itself."""
