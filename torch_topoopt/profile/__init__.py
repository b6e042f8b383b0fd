"""Measures or traces the computation, communication and costs of a model or training script."""
