#!/usr/bin/env bash
# Two workers and a parameter server on this machine, and the coordinator that trains on them. They end
# when the coordinator does, however it does. Four other ports: PORTS="7001 7002 7003 7004" ./run.sh
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
read -r chief ps worker_0 worker_1 <<<"${PORTS:-23451 23452 23453 23454}"

cluster="{\"chief\": [\"127.0.0.1:$chief\"], \"ps\": [\"127.0.0.1:$ps\"],
          \"worker\": [\"127.0.0.1:$worker_0\", \"127.0.0.1:$worker_1\"]}"

start() { # start PROGRAM TYPE INDEX: one task of the cluster, in the background
  TF_CONFIG="{\"cluster\": $cluster, \"task\": {\"type\": \"$2\", \"index\": $3}}" \
    "${PYTHON:-python}" "$here/$1" &
  tasks+=($!)
}

tasks=()
trap 'kill "${tasks[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start server.py ps 0
start server.py worker 0
start server.py worker 1
start coordinator.py chief 0
wait $! # the coordinator; its exit code is that of this script
