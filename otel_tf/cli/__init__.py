"""The `otel-tf` command: one module a command, each with ``add_parser`` and ``run``."""
