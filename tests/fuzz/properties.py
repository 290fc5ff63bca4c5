"""Imports every category, so that all properties are registered."""

from importlib import import_module

from fuzz.harness import CATEGORIES


def load_all() -> None:
    for category in CATEGORIES:
        import_module(f"fuzz.{category}")
