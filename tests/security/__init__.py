"""Tests against input that is made to do harm."""
