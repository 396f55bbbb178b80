"""Log lines: what Python's `logging` and C++ write, captured with the step they belong to, or parsed.

`heads` knows the formats, `joining` puts continuation lines to their records, `prefixes` what launchers put
before a line, `hints` finds worker and step in a text, `failures` reads errors. `capture` takes records from
`logging` in a training process, `native` redirects stderr to a process of its own, which runs `reader`.
Nothing here needs TensorFlow, and none of the parsers anything beyond the standard library.
"""

from __future__ import annotations
