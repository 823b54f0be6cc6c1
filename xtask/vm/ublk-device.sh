# All that the block layer asks of our device, by the programs that users have.
. /job/ublk.sh
create u5

say "without the driver"
# shellcheck disable=SC2086
pinstripe serve --ublk --control /run/u.control $members >/tmp/refused 2>&1 && die "it serves without the driver"
grep -q 'modprobe ublk_drv' /tmp/refused || die "no advice: $(cat /tmp/refused)"
pinstripe ublk list 2>/dev/null && die "list without the driver"
modprobe ublk_drv || die "no ublk_drv"
out refused yes

say "limits"
start
pinstripe detail /run/u.control | grep -q $device || die "detail doesn't show it: $(pinstripe detail /run/u.control)"
pinstripe ublk list | grep -q "^$device .* live, served by process $s_server\$" || die "list: $(pinstripe ublk list)"
limit logical_block_size 512
limit minimum_io_size 65536
limit optimal_io_size 262144
limit discard_granularity 262144
limit fua 1
limit write_cache "write back"
[ "$(find /sys/block/ublkb0/mq -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || die "not one queue per shard"
[ "$(cat /sys/block/ublkb0/ro)" = 0 ] || die "it is read-only"
out limits yes

say "memory"
# Memory that a shard asks for must not be freed by writing to this device: PF_MEMALLOC_NOIO, of PR_SET_IO_FLUSHER.
shards=0
for task in /proc/$s_server/task/*; do
    case $(cat "$task/comm") in
    "shard "*)
        # The ninth field; the second one, the name, has a blank.
        flags=$(sed 's/.*) //' "$task/stat" | cut -d ' ' -f 7)
        [ $((flags & 0x80000)) != 0 ] || die "$(cat "$task/comm") may wait for its own device: $flags"
        shards=$((shards + 1))
        ;;
    esac
done
[ $shards = 2 ] || die "$shards shards"
out flusher yes

say "data"
# shellcheck disable=SC2046
xtask pattern write $device $(expected u)
blockdev --flushbufs $device
expect_content u $device
fio --name=verify --filename=$device --rw=randwrite --bsrange=512-1m --size=128m --io_size=64m --direct=1 --ioengine=libaio \
    --iodepth=32 --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio: $(tail -n 5 /tmp/fio)"
fio --name=buffered --filename=$device --rw=write --bs=1m --size=96m --direct=0 --ioengine=psync --end_fsync=1 \
    --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio, buffered: $(tail -n 5 /tmp/fio)"
consistent
out data yes

say "one queue, two shards"
# shard N: how long it has computed, in ns.
shard() {
    for s_task in /proc/$s_server/task/*; do
        [ "$(cat "$s_task/comm")" != "shard $1" ] || cut -d ' ' -f 1 "$s_task/schedstat"
    done
}
# other_share SIZE: what shard 1 computes, in thousandths of both, while the queue of shard 0 alone has requests of that size.
other_share() {
    o_zero=$(shard 0)
    o_one=$(shard 1)
    fio --name=spread --cpus_allowed=0 --filename=$device --rw=randwrite --bs="$1" --size=128m --io_size=32m --direct=1 \
        --ioengine=libaio --iodepth=32 --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio, one queue: $(tail -n 5 /tmp/fio)"
    o_zero=$(($(shard 0) - o_zero))
    o_one=$(($(shard 1) - o_one))
    o_share=$((1000 * o_one / (o_zero + o_one)))
}
# Which shard gets how much depends on what else the host runs. Short requests, which stay, are what it is compared with.
other_share 16k
short=$o_share
other_share 64k
say "shard 1 computes $o_share of 1000, and $short with requests that stay"
[ $short -lt 50 ] && [ $o_share -gt 100 ] || die "shard 1 computes $o_share of 1000, and $short with requests that stay"
consistent
out spread yes

say "discard and zeroes"
blkdiscard $device || die blkdiscard
say "discarded"
fio --name=fill --filename=$device --rw=write --bs=1m --size=16m --direct=1 --ioengine=psync >/tmp/fio 2>&1 || die fill
# The shell takes its own blkdiscard, which doesn't know -z, unless it is told.
/sbin/blkdiscard -z -o 1536 -l $((8 << 20)) $device || die "blkdiscard -z"
say "zeroed"
dd if=$device of=/tmp/front bs=512 count=16400 iflag=direct 2>/dev/null
dd if=/tmp/front bs=512 skip=3 count=16384 2>/dev/null | cmp -n $((8 << 20)) - /dev/zero || die "zeroes are not zero"
dd if=/tmp/front bs=512 count=3 2>/dev/null | cmp -s -n 1536 - /dev/zero && die "more is zeroed than was asked for"
rm /tmp/front
consistent
out discard yes

say "flush"
# member_flushes: of all members together.
member_flushes() {
    m_all=0
    for member in 0 1 2 3 4; do
        m_all=$((m_all + $(flushes "$(disk u-$member)")))
    done
    echo $m_all
}
one=$(disk u-0)
device_before=$(flushes ublkb0)
member_before=$(flushes "$one")
dd if=/dev/zero of=$device bs=1M count=1 conv=fsync 2>/dev/null || die "dd, fsync"
[ "$(flushes ublkb0)" -gt "$device_before" ] && [ "$(flushes "$one")" -gt "$member_before" ] || die "a flush doesn't reach $one"

say "ext4"
mkfs.ext4 -v -b 4096 -F $device >/tmp/mkfs 2>&1 || die "mkfs: $(cat /tmp/mkfs)"
grep -q 'Stride=16 blocks, Stripe width=64 blocks' /tmp/mkfs || die "mkfs: $(cat /tmp/mkfs)"
mount -t ext4 -o discard $device /mnt || die mount
cp -a /sbin /mnt/ || die "copy: $(df /mnt | tail -n 1)"
# To a raw device the kernel sends a flush after such a write, too. Overwriting a file in place, ext4 is content with FUA, which our
# server makes of a write and a flush on these members: of data and of parity.
dd if=/dev/zero of=/mnt/fua bs=64k count=1 conv=fsync 2>/dev/null || die "dd, fsync"
sync
device_before=$(flushes ublkb0)
member_before=$(member_flushes)
fio --name=fua --filename=/mnt/fua --rw=write --bs=4k --size=64k --direct=1 --sync=dsync --ioengine=psync >/tmp/fio 2>&1 ||
    die "fio, dsync: $(tail -n 5 /tmp/fio)"
device_after=$(($(flushes ublkb0) - device_before))
member_after=$(($(member_flushes) - member_before))
[ $device_after -lt 8 ] || die "FUA came as $device_after flushes"
[ $member_after -ge 32 ] || die "16 writes with FUA are $member_after flushes of members"
out durable yes
pinstripe stop /run/u.control 2>/tmp/error && die "it stops while it is mounted"
grep -q '/mnt' /tmp/error || die "stop: $(cat /tmp/error)"
pinstripe ublk list | grep -q 'mounted on /mnt' || die "list: $(pinstripe ublk list)"
pinstripe ublk delete 0 --force 2>/dev/null && die "a device that is served is deleted"
(cd /sbin && sha256sum ./* 2>/dev/null) >/tmp/sums
# As in a container, which has mounts of its own.
unshare -m sleep 600 &
f_container=$!
sleep 0.5
umount /mnt
pinstripe stop /run/u.control 2>/tmp/error && die "it stops while a container has it mounted"
grep -q 'another name space' /tmp/error || die "stop: $(cat /tmp/error)"
kill $f_container
wait $f_container 2>/dev/null || true
# As a virtual machine's disk.
sleep 600 <$device &
f_machine=$!
pinstripe stop /run/u.control 2>/tmp/error && die "it stops while a program has it open"
grep -q "$device is open in .*process $f_machine" /tmp/error || die "stop: $(cat /tmp/error)"
kill $f_machine
wait $f_machine 2>/dev/null || true
out opened yes
fsck.ext4 -fn $device || die fsck
stop_server
start
mount -t ext4 -o ro $device /mnt || die "mount again"
(cd /mnt/sbin && sha256sum -c /tmp/sums >/tmp/differences 2>&1) || die "copies differ: $(grep -v ': OK' /tmp/differences | head -n 3)"
umount /mnt
out filesystem yes

say "a member fails under load"
fio --name=verify --filename=$device --rw=randwrite --bsrange=512-256k --size=128m --io_size=48m --direct=1 --ioengine=libaio \
    --iodepth=16 --verify=crc32c --verify_fatal=1 --rate=24m >/tmp/fio 2>&1 &
f_fio=$!
sleep 1
pinstripe fail /run/u.control 2 || die fail
wait $f_fio || die "fio, degraded: $(tail -n 5 /tmp/fio)"
pinstripe detail --json /run/u.control | grep -q '"degraded": true' || die "it is not degraded"
pinstripe remove /run/u.control /dev/member/u-2 || die remove
pinstripe add --wait /run/u.control /dev/member/u-2 || die add
consistent
out degraded yes

say "a partition table"
# One partition of 20480 sectors from sector 2048.
dd if=/dev/zero of=$device bs=512 count=1 2>/dev/null
printf '\000\000\000\000\203\000\000\000\000\010\000\000\000\120\000\000' | dd of=$device bs=1 seek=446 conv=notrunc 2>/dev/null
printf '\125\252' | dd of=$device bs=1 seek=510 conv=notrunc,fsync 2>/dev/null
stop_server
SHARDS=1
start
[ "$(cat /sys/block/ublkb0/ublkb0p1/size)" = 20480 ] || die "START_DEV finds no partition"
mkfs.ext4 -q -F /dev/ublkb0p1 || die "mkfs on the partition"
mount -t ext4 /dev/ublkb0p1 /mnt
pinstripe detail /run/u.control | grep -q 'mounted on /mnt' || pinstripe ublk list | grep -q 'mounted on /mnt' ||
    die "a partition's mount is not seen"
umount /mnt
consistent
stop_server
out partitions yes

say "read-only"
start --read-only
[ "$(cat /sys/block/ublkb0/ro)" = 1 ] || die "it isn't read-only"
dd if=/dev/zero of=$device bs=4096 count=1 oflag=direct 2>/dev/null && die "a read-only device is written"
dd if=$device of=/dev/null bs=1M count=8 2>/dev/null || die "a read-only device can't be read"
stop_server
out read-only yes

say "a load through a server of its own"
pinstripe bench --through ublk --device mem:24M --members 4 --reads 30 --fill --seconds 1 --json >/tmp/bench 2>&1 ||
    die "bench: $(tail -n 5 /tmp/bench)"
grep -q '"through": "/dev/ublkb0"' /tmp/bench || die "bench goes elsewhere: $(cat /tmp/bench)"
[ -z "$(pinstripe ublk list)" ] || die "bench leaves a device: $(pinstripe ublk list)"
out through yes
