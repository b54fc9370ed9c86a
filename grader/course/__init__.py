"""The course around the grader: its outline, learners' working copies of labs, executed lessons."""
