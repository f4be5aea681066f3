"""Helpers of the Python tests."""
