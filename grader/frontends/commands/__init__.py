"""Commands of `grader` that have no home of their own; `grader.frontends.cli` lists all."""
