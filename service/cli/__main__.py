"""``python -m service.cli``: the ``longread`` command without its script."""

from __future__ import annotations

from service.cli.main import main

if __name__ == "__main__":
    main()
