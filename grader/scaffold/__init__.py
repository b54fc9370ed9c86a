"""A training script to begin with; `grader scaffold FOLDER` copies it."""
