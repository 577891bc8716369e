"""Tying weights to shared values: which weights, how softly, how hard."""
