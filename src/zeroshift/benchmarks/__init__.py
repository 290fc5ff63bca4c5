"""Speed and memory of each engine, compared with `direct` and with the bare matrix products.

`problems` makes features with the geometry of CLIP's; `case` measures one problem size, `bench` a list of sizes, into a
JSON file from which an interrupted run resumes. The modules that measure need only NumPy, so that they also run where
only torch is installed; tables and figures import what they need when they are called.
"""
