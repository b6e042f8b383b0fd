"""`python benchmarks/figures`."""

import signal
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that the folder is the package

from figures.command import main  # noqa: E402

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the workers, as Ctrl-C does
    sys.exit(main(sys.argv[1:]))
