import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-traces",
        action="store_true",
        help="write what every policy chooses now as what it should choose; look at the diff before you commit it",
    )
