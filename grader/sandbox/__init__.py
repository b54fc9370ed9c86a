"""Running a learner's code where it can do no harm.

`parent.Child` is the trusted side; `server` forks, `confine` locks in, `child` runs the learner's loop. What crosses the
border: JSON lines on a pipe, safetensors files and one profiler trace in the exchange folder. Nothing else."""
