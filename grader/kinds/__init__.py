"""The kinds of labs that are no training loop to make faster, each in one file: declaration, Findings, measure, judge."""
