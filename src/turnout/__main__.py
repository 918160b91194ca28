"""Runs the command `turnout` as `python -m turnout`."""

from turnout.cli import main

if __name__ == "__main__":
    main()
