answers = {
    "a": {"cause": ..., "tflops": ...},
    "b": {"cause": ..., "matmul": ...},
    "c": {"cause": ..., "launches": ...},
    "d": {"cause": ..., "best_ms": ...},
    "e": {"cause": ..., "hidden": ...},
}
