"""The peers as a research script would write them: loops, dense matrices, nothing clever, straight from the equations.

They are the second opinion the tests of the library ask, in float64, and the yardstick of its speed, in float32. None
shares a line with the library. Every `scores` takes and returns torch tensors, computes in the precision it is given,
and puts what it found on the way into the dictionary `details`, if there is one. `released=True` repeats the bugs of
the authors' code; without it they are corrected.
"""
