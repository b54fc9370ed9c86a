answers = {
    "ticket": ...,
    1: {"cause": ..., "metric": ..., "value": ...},
    2: {"cause": ..., "metric": ..., "value": ...},
    3: {"cause": ..., "metric": ..., "value": ...},
    4: {"cause": ..., "metric": ..., "value": ...},
}
