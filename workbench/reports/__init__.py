"""Runs, and a trial, as one HTML file."""

from workbench.reports.page import report
from workbench.reports.trials import trial

__all__ = ["report", "trial"]
