"""A whole class graded: its submissions, the pool of workers that measure them, the results, the summary.

submissions.py   what was handed in, and the content hash of each grade to be made
process.py       the process of one grade
worker.py        what runs on a Dask worker: starts that process, watches it, ends it
pool.py          the workers: embedded (one a GPU), at an address, or SLURM jobs
store.py         the results, a file each, by content hash
coordinator.py   gives the workers what the store lacks, and keeps what comes back
summary.py       what the grades amount to: marks, what needs a person's look, the gradebook
serve.py         a pool that lasts; gateway.py takes in submissions, client.py sends them, keys.py makes certificates"""
