"""The operator's answer: which mechanism is fastest, by how much, and how sure that is."""
