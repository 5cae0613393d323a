#!/bin/busybox sh
# The command line of `vllm serve MODEL ...` as the controllers write it, served by the simulator.
# $ENGINE_SIM goes to it as it is.
port=8000 model=$2
while [ $# -gt 0 ]; do
  case $1 in
  --port) port=$2 ;;
  --served-model-name) model=$2 ;;
  esac
  shift
done
# It listens on the loopback address alone.
# shellcheck disable=SC2086 # several words
/usr/local/bin/engine-sim --dialect vllm --port 18000 --model "$model" $ENGINE_SIM &
busybox nc -lk -p "$port" -e /bin/busybox nc 127.0.0.1 18000 &
# As process 1 this shell gets no signal that it does not ask for.
trap 'exit 0' TERM INT
wait -n
exit 1
