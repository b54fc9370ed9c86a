answers = {
    "trace": ...,
    1: {"operation": ..., "line": ..., "bound": ..., "cause": ...},
    2: {"operation": ..., "line": ..., "bound": ..., "cause": ...},
    3: {"operation": ..., "line": ..., "bound": ..., "cause": ...},
    "share": ...,
}
