#!/bin/bash
# CPU seconds of the server per GiB of NBD over TCP on loopback, plain and by TLS in turns.
set -eu
P=$(realpath "$1"); TURNS=${2:-5}; GIB=2
W=$(mktemp -d /dev/shm/pinstripe-tls.XXXX); cd $W; export PINSTRIPE_RUNTIME_DIR=$W/run
trap 'kill $plain $tls 2>/dev/null; rm -rf $W' EXIT
mkdir tls client; cd tls
new="openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc"
$new -days 9 -subj "/CN=authority" -keyout ca-key.pem -out ca-cert.pem 2>/dev/null
by="-CA ca-cert.pem -CAkey ca-key.pem -days 9 -addext basicConstraints=critical,CA:FALSE"
$new $by -subj /CN=server -addext subjectAltName=DNS:localhost -keyout server-key.pem -out server-cert.pem 2>/dev/null
$new $by -subj /CN=client -addext subjectAltName=DNS:client -keyout ../client/client-key.pem -out ../client/client-cert.pem 2>/dev/null
cp ca-cert.pem ../client; chmod 600 *-key.pem; cd ..
serve() { # NAME PORT OPTIONS
  for i in 0 1 2 3; do truncate -s 900M $1$i; done
  $P create --level 5 --name $1 --assume-clean $1[0-3] >/dev/null
  $P serve --shards 1 --allow-remote --nbd tcp:127.0.0.1:$2 ${@:3} $1[0-3] >$1.log 2>&1 &
}
serve plain 10911; plain=$!
serve tls 10912 --tls-certificates tls; tls=$!
sleep 4
cpu() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' /proc/$1/stat; }
head -c ${GIB}G /dev/urandom > data
U1="nbd://localhost:10911/plain"; U2="nbds://localhost:10912/tls?tls-certificates=$W/client"
run() { # WHAT PID COMMAND
  a=$(cpu $2); s=$(date +%s%N); "${@:3}"; e=$(date +%s%N); b=$(cpu $2)
  awk -v w="$1" -v t=$((b-a)) -v n=$((e-s)) -v g=$GIB -v hz=$(getconf CLK_TCK) 'BEGIN { printf "%s %.3f CPU s/GiB, %.2f GiB/s\n", w, t/hz/g, g/(n/1e9) }'
}
size=$((GIB<<30))
for turn in $(seq $TURNS); do
  run "write plain" $plain nbdcopy --connections=1 data "$U1"
  run "write tls" $tls nbdcopy --connections=1 data "$U2"
  run "read plain" $plain nbdcopy --connections=1 "$U1" null:
  run "read tls" $tls nbdcopy --connections=1 "$U2" null:
done
