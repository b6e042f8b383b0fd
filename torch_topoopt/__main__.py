"""`python -m torch_topoopt`: the command `topoopt`."""

import sys

from torch_topoopt.launcher.main import main

sys.exit(main())
