"""A night: every lesson and solution executed, everything graded, and what changed since the nights before.

parts.py      what a night consists of, and what is expected of each part
night.py      one night in its folder: its manifest, its records
measuring.py  its parts made on a pool, in one go or in pieces
notebook.py   one notebook executed by papermill, on a worker: its cells' durations, errors, warnings
judging.py    what the records say by now, and what is to be measured again
history.py    all nights, one line each; what is slower than the noise of the last ones
report.py     the page, JUnit XML, the Markdown summary
site.py       the executed lessons as a web site (Sphinx)"""
