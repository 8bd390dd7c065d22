"""`python -m deltaq`: the `deltaq` command."""

from deltaq.cli import main

raise SystemExit(main())
