"""`python -m app` is `toolscout`."""

from app.cli.main import main

main()
