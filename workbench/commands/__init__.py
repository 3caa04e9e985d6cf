"""What the commands of `python -m workbench` do; `__main__` says how they are called. Loaded when a command runs."""
