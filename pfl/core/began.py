"""Time at which this process began to import the simulator; the package imports this file first."""

import time

BEGAN = time.time()
