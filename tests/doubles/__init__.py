"""Test doubles: a store that lies, a clock that can be moved."""
