"""Searching: many runs of one recipe, error against bytes, with Optuna.

space.py      what is searched: ranges and choices for entries of the recipe
pruning.py    when a run is not worth its remaining steps
study.py      trials in Optuna's storage: opened, taken, told
locks.py      who is alive, and whose turn it is
worker.py     one process: takes trials and runs them until there are none
processes.py  several of those
front.py      what is on the Pareto front: files, table, page
search.py     all of it, in order
"""
