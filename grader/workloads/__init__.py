"""The models, data sets and jobs that labs train.

A workload module has `make_job(seed, device, **options) -> Job` and
`evaluate(tensors, device, **options) -> {"loss": float, "accuracy": float}` (accuracy where there is such a thing), which
rebuilds the model from trained tensors and evaluates it on held-out data in full fp32."""
