"""`python -m benchmarks PART …`: what measures trimtab, and what others do on the same data."""

import sys

from benchmarks.cli import main

sys.exit(main())
