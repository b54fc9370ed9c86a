"""Checks: each turns evidence into a verdict."""
