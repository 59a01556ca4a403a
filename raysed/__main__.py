"""`python -m raysed`, the same as the command `raysed`."""

import sys

from raysed.cli import main

if __name__ == "__main__":
    sys.exit(main())
