"""Become another program: ``python -m tests.faults.execute PROGRAM ARGUMENTS``, for programs the nursery starts."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.argv[1], sys.argv[1:])
