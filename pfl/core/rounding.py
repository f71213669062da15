"""Floor of a share, robust to floating point."""

import math


def whole_part(share: float, total: float) -> int:
    """floor(share * total), as in exact decimal arithmetic.

    >>> int(0.29 * 100), whole_part(0.29, 100)
    (28, 29)
    """
    return math.floor(share * total + 1e-9)
