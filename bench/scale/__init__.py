"""Measure how search and indexing grow with a user's tools and with the table."""
