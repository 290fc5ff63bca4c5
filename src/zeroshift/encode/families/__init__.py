"""One adapter a family of models: what is particular about feeding it."""
