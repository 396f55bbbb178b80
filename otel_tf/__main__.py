"""`python -m otel_tf` is the `otel-tf` command."""

from __future__ import annotations

from otel_tf.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
