"""The models, data sets and jobs that labs train.

A workload module has `make_job(seed, device, **options) -> Job`,
`evaluate(tensors, device, **options) -> {"loss": float, "accuracy": float}`, which rebuilds the model from trained
tensors and evaluates it on held-out data in full fp32, and `batch_losses(tensors, job, batches, **options)`, which gives
the loss of each of these training batches."""
