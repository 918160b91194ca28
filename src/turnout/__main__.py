"""`python -m turnout` is the command `turnout`."""

from turnout.cli import main

main()
