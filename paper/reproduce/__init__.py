"""The reproduction of the paper: its experiments at its own settings, its numbers beside ours, a verdict for every claim."""
