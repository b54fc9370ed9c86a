"""The models, data sets and jobs that labs train.

A workload module has `make_job(seed, device, **options) -> Job` and `evaluate(tensors: Weights, device, **options) -> Figures`,
which rebuilds the model from trained tensors and evaluates it on held-out data in full fp32.

One whose models are served and not trained has no `evaluate`. It says ENTRY = "serve", the function that a submission defines, and has
`Look(seed, device, **options)`, which makes one number of the answers to a request: `look(n, answers)`, n from 1. Its job has
`requests`, whose `key(n)` is all that request n, n from 0, is drawn from."""
