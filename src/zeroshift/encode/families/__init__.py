"""Encoder classes, one per family of models."""
