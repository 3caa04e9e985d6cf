"""The study of five papers: what only their notebooks need, beside them.

A notebook's kernel starts in this folder's parent, so that `from papers import claims` works there.
The library never imports this package.
"""
