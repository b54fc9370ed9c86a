answers = {
    "a": {"cause": ..., "best_ms": ...},
    "b": {"cause": ..., "idle": ...},
    "c": {"cause": ..., "matmul": ...},
    "d": {"cause": ..., "idle": ...},
    "e": {"cause": ..., "waits": ...},
}
