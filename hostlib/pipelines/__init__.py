"""Pipelines: cut a model into stages, balanced by its layers' times."""
