"""`python -m workbench`: the command line, see `workbench.cli`."""

from workbench.cli.app import main

if __name__ == "__main__":
    main()
