"""`python -m zeroshift` is `zeroshift`."""

from zeroshift.cli import main

if __name__ == "__main__":
    main()
