"""Searching: many runs of one recipe, error against bytes, with Optuna.

space.py      what is searched: ranges and choices for entries of the recipe
study.py      trials in Optuna's storage: taken by workers, told their results
locks.py      a mutex for the search, and a lock for each trial that is worked on
worker.py     takes trials and runs them until there are none, in one process or several
search.py     all of it, in order, and the Pareto front: files, table, page
"""
