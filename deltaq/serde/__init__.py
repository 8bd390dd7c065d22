"""Conversion of values to bytes or typed columns."""
