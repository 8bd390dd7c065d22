"""`python -m deltaq.cli`: the `deltaq` command, where its script is not on the path."""

from deltaq.cli import main

raise SystemExit(main())
