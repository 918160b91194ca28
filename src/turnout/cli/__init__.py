"""The command line. Its commands and options are public, its modules are private."""


def main() -> None:
    """Runs the command `turnout`.

    The import is inside the function because worker processes import this module without needing the commands.
    """
    from turnout.cli.app import main as run

    run()
