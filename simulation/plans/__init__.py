"""Parallel plans: how a model's training is spread over workers, and what each worker then needs."""
