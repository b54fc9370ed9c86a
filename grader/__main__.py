"""`python -m grader`: the command `grader`, where its script is not on the PATH."""

import sys

from grader.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main())
