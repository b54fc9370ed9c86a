"""Measuring: blocks of steps on the parent's clock, the decision, and what is known about this machine."""
