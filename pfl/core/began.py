"""When this process began to import the simulator's code: the package imports this file first."""

import time

BEGAN = time.time()
