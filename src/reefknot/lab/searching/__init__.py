"""Searching: many runs of one recipe, error against bytes, with Optuna.

space.py      what is searched: ranges and choices for entries of the recipe
pruning.py    when a run is not worth its remaining steps
study.py      trials in Optuna's storage: taken by workers, told their results
locks.py      a mutex for the search, and a liveness lock for each worker
worker.py     one process: takes trials and runs them until there are none
processes.py  several of those
front.py      what is on the Pareto front: files, table, page
search.py     all of it, in order
"""
