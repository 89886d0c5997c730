"""`python -m app` is `toolscout`."""

from app.cli import main

main()
