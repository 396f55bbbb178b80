#!/usr/bin/env bash
# Two workers on this machine; if one fails, the other ends too. Two other ports: PORTS="7001 7002" ./run.sh
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
read -r port_0 port_1 <<<"${PORTS:-23461 23462}"

cluster="{\"worker\": [\"127.0.0.1:$port_0\", \"127.0.0.1:$port_1\"]}"

tasks=()
trap 'kill "${tasks[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for index in 0 1; do
  TF_CONFIG="{\"cluster\": $cluster, \"task\": {\"type\": \"worker\", \"index\": $index}}" \
    "${PYTHON:-python}" "$here/train.py" &
  tasks+=($!)
done
for _ in "${tasks[@]}"; do wait -n; done # the first failure ends the script
