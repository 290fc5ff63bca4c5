"""The command `zeroshift`, one file for each of its commands. They parse, call and print; the work is done elsewhere.

Command files import what they need inside their functions: `zeroshift --version` must not wait for matplotlib.
"""

from zeroshift.cli.app import app, main

__all__ = ["app", "main"]
