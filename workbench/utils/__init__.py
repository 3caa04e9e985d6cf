"""Helpers that every room uses: validation, random numbers, plain descriptions of objects."""
