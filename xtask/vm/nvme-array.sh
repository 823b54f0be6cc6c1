# An array of ours, served over NVMe/TCP: written by the kernel, read back after a restart of the server.
. /job/nvme.sh
members="/dev/member/t-0 /dev/member/t-1 /dev/member/t-2"
# shellcheck disable=SC2086
pinstripe create --name n5 --level 5 --chunk 64K --assume-clean $members || die create

# start: serves the array and waits until it is ready.
start() {
    # The log of the server before says "ready", too.
    rm -f /tmp/serve.log
    # shellcheck disable=SC2086
    pinstripe serve --shards 2 --nvme-tcp 127.0.0.1:4420 --nqn $NQN --nbd unix:/run/n5.nbd --control /run/n5.control \
        $members >/tmp/serve.log 2>&1 &
    s_server=$!
    s_tries=0
    until grep -q ready /tmp/serve.log 2>/dev/null; do
        kill -0 $s_server 2>/dev/null || die "serve ended: $(cat /tmp/serve.log 2>&1)"
        s_tries=$((s_tries + 1))
        [ $s_tries -lt 300 ] || die "serve is not ready"
        sleep 0.1
    done
}

start
connect
# shellcheck disable=SC2046
xtask pattern write $one $(expected t)
# Another program takes the server's place under it, and the host doesn't connect again.
fio --name=verify --filename=$one --offset=72m --size=32m --io_size=16m --rw=randwrite --bsrange=512-192k --direct=1 \
    --ioengine=psync --verify=crc32c --verify_fatal=1 --rate=4m >/tmp/fio 2>&1 &
f_fio=$!
for round in 1 2 3; do
    sleep 0.5
    pinstripe upgrade /run/n5.control >/tmp/upgraded || die "upgrade, round $round"
    say "$(cat /tmp/upgraded)"
done
wait $f_fio || die "fio: $(tail -n 5 /tmp/fio)"
! dmesg | grep -i "nvme nvme0.*reconnect\|nvme nvme0.*error recovery" || die "the host has lost its controller"
blkdiscard -o $((72 << 20)) -l $((32 << 20)) $one || die blkdiscard
disconnect
pinstripe check /run/n5.control || die "parity does not match"
pinstripe stop /run/n5.control || die stop
wait $s_server || die "serve ended with status $?"
start
connect
dd if=$one of=/tmp/front bs=1M count=64 2>/dev/null
xtask pattern verify /tmp/front 16384 $(expected t) 2>/tmp/error || die "$(cat /tmp/error)"
disconnect
pinstripe stop /run/n5.control || die stop
wait $s_server || die "serve ended with status $?"
out array yes
