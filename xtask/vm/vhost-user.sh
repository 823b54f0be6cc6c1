# Our array, which the host serves, as a virtio disk. The host kills the server while fio runs.
device=/dev/vda
[ -b $device ] || die "there is no $device: $(ls /sys/block)"

# limit NAME EXPECTED: what the kernel makes of it.
limit() {
    l_found=$(cat "/sys/block/vda/queue/$1")
    [ "$l_found" = "$2" ] || die "$1 is $l_found, not $2"
}

say "limits"
limit logical_block_size 512
limit minimum_io_size 65536
limit optimal_io_size 262144
limit discard_granularity 262144
limit write_cache "write back"
[ "$(find /sys/block/vda/mq -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || die "not two queues"
[ "$(cat /sys/block/vda/serial)" = "$SERIAL" ] || die "the serial number is $(cat /sys/block/vda/serial), not $SERIAL"
out limits yes

say "load"
out load begins
end=$(($(cut -d. -f1 /proc/uptime) + 9))
rounds=0
while [ "$(cut -d. -f1 /proc/uptime)" -lt $end ]; do
    fio --name=verify --filename=$device --rw=randwrite --bsrange=512-128k --size=64m --io_size=24m --direct=1 --ioengine=libaio \
        --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_backlog=128 >/tmp/fio 2>&1 || die "fio: $(tail -n 10 /tmp/fio)"
    rounds=$((rounds + 1))
done
out load ends after $rounds rounds
out load yes

say "discard and zeroes"
/sbin/blkdiscard $device || die blkdiscard
fio --name=fill --filename=$device --rw=write --bs=1m --size=4m --direct=1 --ioengine=psync >/tmp/fio 2>&1 || die fill
/sbin/blkdiscard -z -o 1536 -l $((2 << 20)) $device || die "blkdiscard -z"
dd if=$device bs=512 skip=3 count=4096 iflag=direct 2>/dev/null | cmp -n $((2 << 20)) - /dev/zero || die "zeroes are not zero"
dd if=$device bs=512 count=3 iflag=direct 2>/dev/null | cmp -s -n 1536 - /dev/zero && die "more is zeroed than was asked for"
out discard yes

say "ext4"
mkfs.ext4 -v -b 4096 -F $device >/tmp/mkfs 2>&1 || die "mkfs: $(cat /tmp/mkfs)"
grep -q 'Stride=16 blocks, Stripe width=64 blocks' /tmp/mkfs || die "mkfs: $(cat /tmp/mkfs)"
mount -t ext4 $device /mnt || die mount
# A root for the next boot.
for folder in dev proc sys run tmp mnt job etc; do
    mkdir /mnt/$folder
done
cp -a /bin /sbin /lib /lib64 /mnt/ || die "copy: $(df /mnt | tail -n 1)"
[ ! -e /usr ] || cp -a /usr /mnt/ || die "copy of /usr"
(cd / && find sbin -type f -exec sha256sum {} +) >/mnt/etc/sums
umount /mnt || die umount
fsck.ext4 -fn $device || die fsck
out filesystem yes
