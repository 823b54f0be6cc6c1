# An array on QEMU's NVMe disks: by passthrough (/dev/ngXn1) and as block devices, polled and not; each way reads what
# the others wrote. The kernel's tracepoints show the commands that the disks get.
. /job/nvme.sh
disks="p-0 p-1 p-2"
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || true
T=/sys/kernel/tracing

# load OPTION...: (re)loads the driver, and finds generic0 to generic2 and block0 to block2.
load() {
    rmmod nvme 2>/dev/null || true
    modprobe nvme "$@" || die "no nvme"
    l_i=0
    for l_serial in $disks; do
        l_tries=0
        until l_block=$(with_serial "$l_serial") && [ -b "/dev/$l_block" ] && [ -c "/dev/ng${l_block#nvme}" ]; do
            l_tries=$((l_tries + 1))
            [ $l_tries -lt 100 ] || die "$l_serial does not come up: $(ls /dev /sys/block; dmesg | tail -n 5)"
            sleep 0.1
        done
        eval "block$l_i=/dev/$l_block generic$l_i=/dev/ng${l_block#nvme}"
        l_i=$((l_i + 1))
    done
    generics="$generic0 $generic1 $generic2"
    blocks="$block0 $block1 $block2"
}

# with_serial SERIAL: the kernel's name of the disk.
with_serial() {
    for w_disk in /sys/block/nvme*; do
        if [ "$(tr -d ' ' <"$w_disk/device/serial" 2>/dev/null)" = "$1" ]; then
            basename "$w_disk"
            return
        fi
    done
    return 1
}

# serve OPTION... DEVICE...: serves on one shard and connects /dev/nbd0.
serve() {
    rm -f /tmp/serve.log
    pinstripe serve --shards 1 --cache 0 --nbd unix:/run/p.nbd --control /run/p.control "$@" >/tmp/serve.log 2>&1 &
    s_server=$!
    s_tries=0
    until grep -q ready: /tmp/serve.log 2>/dev/null; do
        kill -0 $s_server 2>/dev/null || die "serve $*: $(cat /tmp/serve.log)"
        s_tries=$((s_tries + 1))
        [ $s_tries -lt 300 ] || die "serve $* is not ready: $(cat /tmp/serve.log)"
        sleep 0.1
    done
    nbd-client -unix /run/p.nbd /dev/nbd0 >/dev/null 2>&1 || die "nbd-client does not connect"
}

stop_serving() {
    blockdev --flushbufs /dev/nbd0
    nbd-client -d /dev/nbd0 >/dev/null 2>&1
    pinstripe stop /run/p.control || die "stop: $(cat /tmp/serve.log)"
    wait $s_server || die "serve ended with status $?: $(cat /tmp/serve.log)"
}

# refuse WORDS COMMAND...: it must fail with these words.
refuse() {
    r_words=$1
    shift
    timeout 30 "$@" >/tmp/said 2>&1 && die "it works: $*"
    grep -q -- "$r_words" /tmp/said || die "$* does not say '$r_words': $(cat /tmp/said)"
}

# trace, traced PATTERN: how many commands since trace match.
trace() {
    echo 1 >$T/events/nvme/nvme_setup_cmd/enable
    : >$T/trace
}
traced() {
    grep -c "$1" $T/trace || true
}

# write GENERATION, verify GENERATION: the pattern on /dev/nbd0.
write() {
    # shellcheck disable=SC2046
    xtask pattern write /dev/nbd0 $(cat "/job/expected/$1") || die "write $1"
    blockdev --flushbufs /dev/nbd0
}
verify() {
    blockdev --flushbufs /dev/nbd0
    # shellcheck disable=SC2046
    xtask pattern verify /dev/nbd0 $(($(blockdev --getsize64 /dev/nbd0) / 4096)) $(cat "/job/expected/$1") 2>/tmp/error ||
        die "$2: $(cat /tmp/error)"
}

# corrected: a read of a member failed with an error of the medium, and the sectors were rewritten.
corrected() {
    pinstripe detail --json /run/p.control >/tmp/detail
    grep -q '"corrected_reads": [1-9]' /tmp/detail || { cat /tmp/detail; die "nothing was corrected"; }
    grep -q '"degraded": false' /tmp/detail || { cat /tmp/detail; die "a member was dropped"; }
}

# used: nanoseconds of CPU that the server's threads have had.
used() {
    cat /proc/$s_server/task/*/schedstat | awk '{ sum += $1 } END { printf "%.0f", sum }'
}

# cost NAME OPTION... DEVICE...: CPU of the server for each of $READS reads of 4 KiB, one at a time and eight.
cost() {
    c_name=$1
    shift
    serve "$@"
    for c_depth in 1 8; do
        c_before=$(used)
        fio --name=cost --filename=/dev/nbd0 --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=$c_depth \
            --number_ios=$READS >/tmp/fio 2>&1 || die "fio: $(tail -n 3 /tmp/fio)"
        out cost "$c_name depth $c_depth: $((($(used) - c_before) / READS)) ns"
    done
    stop_serving
}

say "without queues to poll"
modprobe nbd
load poll_queues=0
# shellcheck disable=SC2086
{
    pinstripe create --name p5 --level 5 --chunk 64K --bitmap internal --assume-clean $generics || die create
    pinstripe examine --json $generics >/tmp/examined || die "examine: $(cat /tmp/examined)"
    [ "$(grep -c '"member"' /tmp/examined)" = 3 ] || die "examine: $(cat /tmp/examined)"
    refuse nvme.poll_queues=N pinstripe serve --poll $blocks
    refuse nvme.poll_queues=N pinstripe serve --poll $generics
    refuse 'are one device' pinstripe serve $generic0 $block0 $generic1
    out refused yes
    serve $generics
}
write 1
# That meets a sector which can't be read.
verify 1 "by passthrough"
corrected
stop_serving
# shellcheck disable=SC2086
serve $blocks
verify 1 "written by passthrough, read as block devices"
corrected
write 2
stop_serving
# shellcheck disable=SC2086
serve $generics
verify 2 "written as block devices, read by passthrough"
refuse 'is held by another process' pinstripe serve --read-only "$block0" "$generic1" "$generic2"
refuse 'is held by another process' pinstripe target --listen 127.0.0.1:4421 --nqn "$NQN" "$generic0"
stop_serving
out unpolled yes

say "polled"
load
[ "$(cat /sys/module/nvme/parameters/poll_queues)" = 2 ] || die "the kernel's option doesn't reach the driver"
trace
# shellcheck disable=SC2086
serve --poll $generics
idle_before=$(used)
sleep 1
idle=$(($(used) - idle_before))
[ $idle -lt 150000000 ] || die "the server used $idle ns in a second without work"
verify 2 "polled by passthrough"
corrected
# Superblocks and the bitmap are forced too, but they are shorter than a chunk.
[ "$(traced 'nvme_cmd_write .*len=127, ctrl=0x4000')" = 0 ] || die "data is forced that nothing asked to be"
fio --name=fua --filename=/dev/nbd0 --rw=write --bs=64k --size=64k --direct=1 --sync=dsync --ioengine=psync >/tmp/fio 2>&1 ||
    die "fio, dsync: $(tail -n 3 /tmp/fio)"
out forced "$(traced 'nvme_cmd_write .*len=127, ctrl=0x4000')"
write 1
[ "$(traced 'nvme_cmd_flush')" -gt 0 ] || die "no flush reaches a disk"
stop_serving
# shellcheck disable=SC2086
serve --poll $blocks
verify 1 "written by polled passthrough, read as polled block devices"
write 2
stop_serving
serve --poll "$generic0" "$block1" "$generic2"
verify 2 "both kinds mixed"
trace
# The middle of it, in whole stripes.
/sbin/blkdiscard -o $((8 << 20)) -l $((4 << 20)) /dev/nbd0 || die blkdiscard
blockdev --flushbufs /dev/nbd0
dd if=/dev/nbd0 bs=1M skip=8 count=4 2>/dev/null | cmp -n $((4 << 20)) - /dev/zero || die "discarded, and not zero"
out zeroes "$(traced nvme_cmd_write_zeroes)"
pinstripe check /run/p.control || die "parity does not match"
stop_serving
out polled yes

say "what the kernel uses is refused by its other name"
mkdir -p /mnt
mkfs.ext4 -q -F "$block0" || die mkfs
mount -t ext4 "$block0" /mnt || die mount
refuse 'is mounted at /mnt' pinstripe create --force --level 5 $generics
umount /mnt
out mounted yes

say "discard, by a target"
modprobe nvme-tcp
start_target "$generic0"
trace
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" --hostnqn=$HOST --hostid=$HOST_ID || die "nvme connect"
controller=$(grep -l "^$NQN\$" /sys/class/nvme/nvme*/subsysnqn)
remote=$(namespace "$(basename "$(dirname "$controller")")" 1)
wait_for "$remote"
timeout 5 pinstripe target --allow-unauthenticated --listen 127.0.0.1:4421 --nqn "$NQN:remote" "/dev/ng${remote#/dev/nvme}" >/tmp/said 2>&1 || true
grep -q 'passthrough does not work: it is reached by tcp' /tmp/said || die "passthrough over TCP: $(cat /tmp/said)"
/sbin/blkdiscard -o 0 -l $((4 << 20)) "$remote" || die blkdiscard
out deallocated "$(traced "disk=$(basename "$block0"),.*nvme_cmd_dsm nr=0, attributes=4")"
nvme disconnect -n "$NQN" >/dev/null || die "nvme disconnect"
stop_target

# The block device is claimed beside the one that the commands go to: a process that is gone must have both.
say "a killed server's last commands keep the next one away"
late=$(with_serial p-slow) || die "no slow disk"
# left: how many commands to the slow disk that were given before the kill are not completed.
left() {
    awk -v disk="disk=$late," '
        /KILLED/ { killed = 1 }
        index($0, disk) && match($0, /qid=[0-9]+, cmdid=[0-9]+/) {
            command = substr($0, RSTART, RLENGTH)
            if (/nvme_complete_rq/) delete given[command]
            else if (!killed) given[command] = 1
        }
        END { for (command in given) count++; print count + 0 }' $T/trace
}
pinstripe create --force --name late --level 5 --chunk 64K --bitmap internal --assume-clean "$generic0" "$generic1" \
    "/dev/ng${late#nvme}" || die "create late"
serve "$generic0" "$generic1" "/dev/ng${late#nvme}"
echo 1 >$T/events/nvme/nvme_complete_rq/enable
trace
fio --name=late --filename=/dev/nbd0 --rw=write --bs=1m --size=8m --iodepth=8 --direct=1 --ioengine=libaio >/tmp/fio 2>&1 &
writer=$!
tries=0
until [ "$(left)" -ge 4 ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || die "the slow disk is given no commands: $(cat /tmp/fio)"
    sleep 0.1
done
kill -KILL $s_server
wait $s_server || true
echo KILLED >$T/trace_marker
nbd-client -d /dev/nbd0 >/dev/null 2>&1
wait $writer || true
left=$(left)
[ "$left" -gt 0 ] || die "nothing is under way on the slow disk when its server is gone"
serve "$block0" "$block1" "/dev/$late"
[ "$(left)" = 0 ] || die "$(left) of $left commands of the dead server are under way when the next one serves"
echo 0 >$T/events/nvme/nvme_complete_rq/enable
stop_serving
out late yes

[ "$READS" -gt 0 ] || exit 0
say "cost"
# shellcheck disable=SC2086
{
    pinstripe create --force --name p0 --level 0 --chunk 64K $generics || die "create p0"
    echo 0 >$T/events/nvme/nvme_setup_cmd/enable
    for round in 1 2 3; do
        cost block $blocks
        cost passthrough $generics
        cost polled-block --poll $blocks
        cost polled-passthrough --poll $generics
    done
}
