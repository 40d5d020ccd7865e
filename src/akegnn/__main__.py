"""``python -m akegnn``."""

from .cli import main

main()
