"""The command line."""


def main() -> None:
    """Run the command `turnout`.

    Its parts are imported here and not above: worker processes import this module too, and need none of them.
    """
    from turnout.cli.app import main as run

    run()
