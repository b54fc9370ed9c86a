answers = {
    "a": {"cause": ..., "idle": ..., "phase": ...},
    "b": {"cause": ..., "idle": ..., "launches": ...},
    "c": {"cause": ..., "waits": ..., "line": ...},
    "d": {"cause": ..., "phase": ..., "best_ms": ...},
    "e": {"cause": ..., "idle": ...},
}
