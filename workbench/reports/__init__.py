"""A run as one HTML file."""

from workbench.reports.page import report

__all__ = ["report"]
