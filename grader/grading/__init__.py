"""The chapters of a grade: one file, one job. `grader.grade` tells their story."""
