answers = {
    "a": {"cause": ..., "data_wait": ...},
    "b": {"cause": ..., "overlap": ...},
    "c": {"cause": ..., "best_ms": ...},
    "d": {"cause": ..., "overlap": ...},
    "e": {"cause": ..., "matmul": ...},
}
