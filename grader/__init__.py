"""The course's grader. In a notebook: `import grader; lab = grader.lab("2a_workers")`."""

__version__ = "0.1.0"
