"""What a terminal shows of a run: its progress, and the tables at its end."""
