"""Runs, and a trial, as one HTML file."""

from workbench.reports.page import report, trial

__all__ = ["report", "trial"]
