"""The rules of the baselines and of the five papers, one file for each slot.

Further papers stand in `workbench.catalogue`, one file a method.
"""
