"""`python -m reefknot.cli`, for where the command is not on the path."""

from reefknot.cli import main

if __name__ == "__main__":
    main()
