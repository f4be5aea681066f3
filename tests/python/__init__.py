"""Python tests."""
