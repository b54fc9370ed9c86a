"""A night: every lesson and solution executed, everything graded, and what changed since the nights before."""
