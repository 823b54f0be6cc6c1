# Our server is killed under writes, $KILLS times, and the next one takes its device over.
. /job/ublk.sh
modprobe ublk_drv
create u5
start

# load DEVICE: fio writes and verifies what it wrote, again and again, until there is /tmp/enough.
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=verify --filename="$1" --rw=randwrite --bsrange=4k-128k --size=64m --io_size=48m --direct=1 --ioengine=libaio \
            --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_backlog=128 >/tmp/fio 2>&1 || return 1
    done
}

load $device &
f_fio=$!
interrupted=0
for round in $(seq "$KILLS"); do
    sleep 1.3
    kill -0 $f_fio || die "fio has ended before round $round: $(tail -n 10 /tmp/fio)"
    say "kill, round $round"
    # Reads and writes under way. Afterwards the driver may have put them back, which this doesn't count.
    interrupted=$((interrupted + $(awk '{ print $1 + $2 }' /sys/block/ublkb0/inflight)))
    kill_server
    [ -b $device ] || die "$device went with its server"
    # What comes meanwhile waits.
    sleep 0.5
    # With as many shards as queues, and with fewer.
    SHARDS=$((1 + round % 2))
    start
    grep -q 'taken over' /tmp/serve.log || die "it wasn't taken over: $(cat /tmp/serve.log)"
done
out under-way $interrupted
say "another program takes its place"
for round in 1 2 3 4; do
    kill -0 $f_fio || die "fio has ended before change $round: $(tail -n 10 /tmp/fio)"
    pinstripe upgrade /run/u.control || die "upgrade $round: $(cat /tmp/serve.log)"
    kill -0 $s_server || die "it is another process after change $round"
    sleep 0.7
done
[ "$(grep -c 'was taken over' /tmp/serve.log)" -ge 4 ] || die "the device was not taken over: $(cat /tmp/serve.log)"
if grep -q 'can.t take over\|still wait' /tmp/serve.log; then
    die "a change went wrong: $(cat /tmp/serve.log)"
fi
out upgraded yes
: >/tmp/enough
wait $f_fio || die "fio: $(tail -n 10 /tmp/fio)"
[ $interrupted -gt 0 ] || die "no kill met a request under way"
consistent
out recovered yes

say "under a file system"
mkfs.ext4 -q -F $device || die mkfs
mount -t ext4 $device /mnt || die mount
cp -a /sbin /mnt/ &
f_copy=$!
sleep 0.3
kill_server
pinstripe ublk list >/tmp/list
start
wait $f_copy || die copy
sync
(cd /sbin && sha256sum ./* 2>/dev/null) >/tmp/sums
umount /mnt
fsck.ext4 -fn $device || die fsck
mount -t ext4 -o ro $device /mnt
(cd /mnt/sbin && sha256sum -c /tmp/sums >/tmp/differences 2>&1) || die "copies differ: $(grep -v ': OK' /tmp/differences | head -n 3)"
umount /mnt
consistent
out mounted yes

say "an orderly end under a file system"
mount -t ext4 $device /mnt || die mount
mkdir /mnt/late
cp /sbin/* /mnt/late/ 2>/dev/null
# No program has asked for this to be written. The unit's unmount may have taken too long.
kill -TERM $s_server
tries=0
while [ -e /sys/block/ublkb0 ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || die "the device does not go: $(cat /tmp/serve.log)"
    sleep 0.1
done
# The file system has the device open still. The members are clean and free all the same, and the server ends.
tries=0
while kill -0 $s_server 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || die "the server does not end: $(cat /tmp/serve.log)"
    sleep 0.1
done
wait $s_server || die "serve ended with status $?: $(cat /tmp/serve.log)"
grep -q "$device is gone, .*mounted on /mnt" /tmp/serve.log || die "nothing is said of /mnt: $(cat /tmp/serve.log)"
pinstripe examine --json "${members%% *}" | grep -q '"clean": true' || die "it is not clean: $(pinstripe examine "${members%% *}")"
# The driver keeps the number for as long. Another start is not kept waiting for it.
# shellcheck disable=SC2086
timeout 60 pinstripe serve --ublk=0 --control /run/u.control $members >/tmp/refused 2>&1 && die "it has $device twice"
grep -q 'open still.*without a number' /tmp/refused || die "the refusal: $(cat /tmp/refused)"
umount /mnt
start
mount -t ext4 $device /mnt || die mount
(cd /mnt/late && sha256sum -c /tmp/sums >/tmp/differences 2>&1) ||
    die "what was written before the end is lost: $(grep -v ': OK' /tmp/differences | head -n 3)"
umount /mnt
fsck.ext4 -fn $device || die fsck
consistent
out ended yes

say "an array that may not be started says what waits for it"
kill_server
tries=0
until pinstripe serve --ublk=0 --control /run/u.control ${members% *} >/tmp/refused 2>&1 || grep -q 'was there when' /tmp/refused; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || die "without a member: $(cat /tmp/refused)"
    sleep 0.5
done
grep -q 'requests to /dev/ublkb0 still wait' /tmp/refused || die "nothing is said of $device: $(cat /tmp/refused)"
tries=0
until PINSTRIPE_RUNTIME_DIR=/run pinstripe detail u5 2>&1 | grep -q 'requests to /dev/ublkb0 still wait'; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || die "detail says nothing of $device: $(PINSTRIPE_RUNTIME_DIR=/run pinstripe detail u5 2>&1)"
    sleep 0.1
done
start

say "another array must not have it"
kill_server
tries=0
until pinstripe ublk list | grep -q quiesced; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || die "it does not wait for a server: $(pinstripe ublk list)"
    sleep 0.1
done
pinstripe serve --create --level 5 --name other --ublk=0 --control /run/other.control mem:16M mem:16M mem:16M >/tmp/other 2>&1 &&
    die "another array takes it over"
grep -q "isn't this array's" /tmp/other || die "the refusal: $(cat /tmp/other)"
out foreign yes

say "delete"
pinstripe ublk delete 0 2>/tmp/error && die "what waits for a server is deleted without --force"
grep -q -- '--ublk=0' /tmp/error || die "no advice: $(cat /tmp/error)"
# A request that waits fails then.
dd if=$device of=/dev/null bs=4096 count=1 iflag=direct 2>/tmp/dd &
f_dd=$!
sleep 0.5
kill -0 $f_dd || die "a request doesn't wait for a server"
pinstripe ublk delete 0 --force || die "delete --force"
wait $f_dd && die "a request succeeds without a server"
[ -z "$(pinstripe ublk list)" ] || die "a device is left: $(pinstripe ublk list)"
start
consistent
stop_server
out deleted yes

say "a signal at any moment of the start"
for delay in 0.02 0.05 0.1 0.15 0.2 0.25 0.3 0.4 0.5; do
    # shellcheck disable=SC2086
    pinstripe serve --shards 2 --ublk=0 --nbd unix:/run/u.nbd --control /run/u.control $members >/tmp/serve.log 2>&1 &
    s_server=$!
    sleep $delay
    kill -TERM $s_server 2>/dev/null || true
    # 143: by the signal itself, before there was anything to end in order.
    wait $s_server || [ $? = 143 ] || die "after $delay s: $(cat /tmp/serve.log)"
    [ -z "$(pinstripe ublk list)" ] || die "after $delay s a device is left: $(pinstripe ublk list)"
done
start
dd if=$device of=/dev/null bs=1M count=8 iflag=direct 2>/dev/null || die "it can't be read"
consistent
stop_server
out interrupted yes
