"""``python -m ltnode.cli`` is the ``ltnode`` command."""

from ltnode.cli import main

if __name__ == "__main__":
    main()
