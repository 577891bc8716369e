"""Searching: many runs of one recipe, error against bytes, with Optuna.

space.py      what is searched: ranges and choices for entries of the recipe
study.py      trials in Optuna's storage: locked by workers, told their results
search.py     all of it, in order, and the Pareto front: files, table, page
"""
