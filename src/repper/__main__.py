import sys

from repper.cli import main

sys.exit(main())
