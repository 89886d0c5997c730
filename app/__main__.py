"""`python -m app` runs `toolscout`."""

from app.cli.main import main

main()
