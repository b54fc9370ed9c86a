"""A whole class graded: its submissions, the pool of workers that measure them, the results, the summary."""
