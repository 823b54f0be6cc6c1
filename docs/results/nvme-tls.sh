#!/bin/bash
# CPU seconds per GiB of NVMe/TCP on loopback, plain and by TLS in turns: of a target, and of the array's server.
set -eu
P=$(realpath "$1"); TURNS=${2:-5}; GIB=2; NQN=nqn.2026-01.com.example
W=$(mktemp -d /dev/shm/pinstripe-tls.XXXX); cd "$W"; export PINSTRIPE_RUNTIME_DIR=$W/run
trap 'kill $(jobs -p) 2>/dev/null; rm -rf $W' EXIT
umask 077
KEY=$(python3 -c 'import base64, os, zlib; k = os.urandom(32); print("NVMeTLSkey-1:01:%s:" % base64.b64encode(k + zlib.crc32(k).to_bytes(4, "little")).decode())')
echo "* $KEY" >servers
echo "$NQN:host $KEY" >hosts
target() { # NAME PORT OPTIONS
  for i in 0 1; do truncate -s 1200M $1$i; done
  $P target --listen 127.0.0.1:$2 --nqn $NQN:$1 --shards 1 --allow-unauthenticated "${@:3}" $1[01] >$1.target 2>&1 &
}
# A server that knows no key of this host has it say its name.
target ask 4430 --nvme-tls-hosts hosts; sleep 1
HOST=$($P discover 127.0.0.1:4430 --nvme-tls-secrets servers 2>&1 | sed -n 's/.*this host is \([^ ;]*\).*/\1/p'); kill $!
echo "$HOST $KEY" >hosts
serve() { # NAME PORT OPTIONS
  $P create --level 0 --name $1 "${@:3}" "nvme-tcp://127.0.0.1:$2/$NQN:$1?nsid=1" "nvme-tcp://127.0.0.1:$2/$NQN:$1?nsid=2" >/dev/null
  $P serve --shards 1 "${@:3}" "nvme-tcp://127.0.0.1:$2/$NQN:$1?nsid=1" "nvme-tcp://127.0.0.1:$2/$NQN:$1?nsid=2" >$1.log 2>&1 &
}
target plain 4431; plain=$!
target tls 4432 --nvme-tls-hosts hosts; tls=$!
sleep 1
serve plain 4431; plain_host=$!
serve tls 4432 --nvme-tls-secrets servers; tls_host=$!
sleep 4
cpu() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' /proc/$1/stat; }
head -c ${GIB}G /dev/urandom >data
run() { # WHAT TARGET HOST COMMAND
  a=$(cpu $2); c=$(cpu $3); "${@:4}"; b=$(cpu $2); d=$(cpu $3)
  awk -v w="$1" -v t=$((b-a)) -v h=$((d-c)) -v g=$GIB -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%s: target %.3f, host %.3f CPU s/GiB\n", w, t/hz/g, h/hz/g }'
}
for turn in $(seq "$TURNS"); do
  run "write plain" $plain $plain_host nbdcopy data "nbd+unix:///plain?socket=$W/run/plain.nbd"
  run "write tls" $tls $tls_host nbdcopy data "nbd+unix:///tls?socket=$W/run/tls.nbd"
  run "read plain" $plain $plain_host nbdcopy "nbd+unix:///plain?socket=$W/run/plain.nbd" null:
  run "read tls" $tls $tls_host nbdcopy "nbd+unix:///tls?socket=$W/run/tls.nbd" null:
done
nbdcopy "nbd+unix:///tls?socket=$W/run/tls.nbd" read
cmp -n $((GIB << 30)) data read && echo "the data is right"
