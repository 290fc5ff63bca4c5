"""How fast each engine is and how much memory it takes, beside `direct` and beside the bare matrix products.

`clip_like` makes problems with the geometry of CLIP's features; `cell` measures one size, `bench` a grid of sizes, into
a JSON file that can be gone on with. The modules that measure need nothing but NumPy, so that they also run where only
torch is installed; tables and figures import what they need when they are called.
"""
