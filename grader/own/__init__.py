"""Training loops of one's own, that belong to no lab: measured as a lab's are, for no points."""
