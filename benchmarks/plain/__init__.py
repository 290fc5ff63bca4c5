"""Published methods as a research script would implement them: loops and dense matrices, directly from the equations.

The tests compare the library with them in float64, and the benchmarks compare its speed in float32. They share no code
with the library. Every `scores` takes and returns torch tensors, computes in the precision of its input, and stores
intermediate results in the dictionary `details`, if one is given. `released=True` repeats the bugs of the authors'
code; otherwise they are corrected.
"""
