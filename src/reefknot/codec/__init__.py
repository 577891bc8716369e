"""Models and coders: how the indices of a state become bits, and back.

Everything that decides a bit is integer arithmetic, so the same state gives the same bytes on
every machine. Nothing here knows file offsets; that is `reefknot.format`.
"""
