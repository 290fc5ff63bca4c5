"""The command `zeroshift`: `zeroshift X` is the function `X` in `cli/X.py`.

Commands parse, call and print; the work is done by the packages below. A command's module is imported when the command
runs (see `app`), so modules of commands import at the top what they need.
"""

from zeroshift.cli.app import app, main

__all__ = ["app", "main"]
