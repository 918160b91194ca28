"""What setup.py and the checks of the package need: `make dist` and `make dist-check` use it."""
