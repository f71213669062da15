"""Check a commit message's subject: at most 72 characters, naming the part, as in "ledger: check rows"."""

import re
import sys
from pathlib import Path

LONGEST = 72

subject = Path(sys.argv[1]).read_text(encoding="utf-8").partition("\n")[0]
generated = subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! "))
if len(subject) > LONGEST:
    sys.exit(f"commit subject: {len(subject)} characters; expected at most {LONGEST}: {subject}")
if not generated and not re.match(r"[\w./ ,-]+: \S", subject):
    sys.exit(f"commit subject: expected 'part: what it does', as in 'ledger: check rows', not: {subject}")
