# Members on memory that the kernel takes for persistent, by its option memmap: files on /dev/pmem0, and device DAX.
. /job/ublk.sh
modprobe ublk_drv || die "no ublk_drv"
modprobe nd_pmem && modprobe nd_e820 || die "no pmem"
tries=0
until [ -b /dev/pmem0 ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || die "no /dev/pmem0: $(dmesg | grep -i -e pmem -e nd_ -e user | tail -n 8)"
    sleep 0.1
done
mkfs.ext4 -q -b 4096 /dev/pmem0 || die mkfs
mkdir /mnt/pmem
mount -t ext4 -o dax /dev/pmem0 /mnt/pmem || die "mount -o dax: $(dmesg | tail -n 3)"
plain=
mapped=
for member in 0 1 2 3 4; do
    # Of this file all space is there, as nothing else promises.
    dd if=/dev/zero of=/mnt/pmem/m-$member bs=1M count=48 2>/dev/null || die dd
    plain="$plain /mnt/pmem/m-$member"
    mapped="$mapped pmem:/mnt/pmem/m-$member"
done

say "not in persistent memory"
dd if=/dev/zero of=/tmp/m-0 bs=1M count=48 2>/dev/null
pinstripe create --name u5 --level 5 pmem:/tmp/m-0 pmem:/mnt/pmem/m-1 pmem:/mnt/pmem/m-2 2>/tmp/refused && die "memory that is not persistent is taken"
grep -q 'dax' /tmp/refused || die "no advice: $(cat /tmp/refused)"
rm /tmp/m-0
out refused yes

say "used where it lies"
# expect_front: what is before what fio writes must be what is expected.
expect_front() {
    dd if=$device of=/tmp/front bs=1M count=64 iflag=direct 2>/dev/null || die "read"
    # shellcheck disable=SC2046
    xtask pattern verify /tmp/front 16384 $(expected u) 2>/tmp/error || die "content: $(cat /tmp/error)"
    rm /tmp/front
}
members=$mapped
create u5
start
for member in 0 1 2 3 4; do
    grep -q "rw-s .* /mnt/pmem/m-$member\$" /proc/$s_server/maps || die "m-$member is not mapped: $(cat /proc/$s_server/maps)"
    grep -q '^VmFlags:.* sf' /proc/$s_server/smaps || die "not a synchronous mapping"
done
pinstripe detail /run/u.control | grep -q 'pmem:/mnt/pmem/m-0' || die "detail: $(pinstripe detail /run/u.control)"
# shellcheck disable=SC2046
xtask pattern write $device $(expected u)
blockdev --flushbufs $device
expect_front
fio --name=verify --filename=$device --offset=96m --rw=randwrite --bsrange=512-256k --size=64m --io_size=24m --direct=1 --ioengine=libaio \
    --iodepth=16 --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio: $(tail -n 5 /tmp/fio)"
pinstripe check /run/u.control >/tmp/check 2>&1 || die "check: $(cat /tmp/check)"
out used yes

say "killed, and served again"
kill_server
start
expect_front
pinstripe check /run/u.control >/tmp/check 2>&1 || die "check: $(cat /tmp/check)"
stop_server
out again yes

say "the same files without pmem:"
members=$plain
start
expect_front
pinstripe check /run/u.control >/tmp/check 2>&1 || die "check: $(cat /tmp/check)"
stop_server
umount /mnt/pmem || die "the files are still in use"
out plain yes

say "device DAX"
modprobe device_dax && modprobe dax_pmem || die "no device DAX"
# device_dax REGION: has a device DAX made of the region's memory, as 'ndctl create-namespace -f -e namespaceR.0 -m devdax' does.
device_dax() {
    d_seed=$(cat "/sys/bus/nd/devices/region$1/dax_seed")
    [ -n "$d_seed" ] || die "region $1 can have no device DAX"
    d_made=/sys/bus/nd/devices/$d_seed
    echo "namespace$1.0" >/sys/bus/nd/drivers/nd_pmem/unbind || die "namespace$1.0 is in use"
    echo ram >"$d_made/mode" || die mode
    cat /proc/sys/kernel/random/uuid >"$d_made/uuid" || die uuid
    echo "namespace$1.0" >"$d_made/namespace" || die "namespace: $(dmesg | tail -n 3)"
    echo "$d_seed" >/sys/bus/nd/drivers/dax_pmem/bind || die "dax_pmem: $(dmesg | tail -n 5)"
    tries=0
    until [ -c "/dev/dax$1.0" ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || die "no /dev/dax$1.0: $(ls /sys/bus/dax/devices; dmesg | tail -n 5)"
        sleep 0.1
    done
}
plain=
mapped=
for region in 1 2 3; do
    device_dax $region
    plain="$plain /dev/dax$region.0"
    mapped="$mapped pmem:/dev/dax$region.0"
done
# shellcheck disable=SC2086
pinstripe create --name d5 --level 5 $plain 2>/tmp/refused && die "a device DAX is taken under its plain name"
grep -q 'pmem:/dev/dax1.0' /tmp/refused || die "no advice: $(cat /tmp/refused)"
members=$mapped
create d5
start
for region in 1 2 3; do
    grep -q "rw-s .* /dev/dax$region.0\$" /proc/$s_server/maps || die "dax$region.0 is not mapped: $(cat /proc/$s_server/maps)"
done
# shellcheck disable=SC2086
pinstripe serve --control /run/other.control $mapped 2>/tmp/refused && die "two servers have the members"
grep -q 'held by' /tmp/refused || die "not kept out: $(cat /tmp/refused)"
# shellcheck disable=SC2046
xtask pattern write $device $(expected u)
blockdev --flushbufs $device
expect_front
fio --name=verify --filename=$device --offset=64m --rw=randwrite --bsrange=512-256k --size=32m --io_size=24m --direct=1 --ioengine=libaio \
    --iodepth=16 --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio: $(tail -n 5 /tmp/fio)"
pinstripe check /run/u.control >/tmp/check 2>&1 || die "check: $(cat /tmp/check)"
kill_server
start
expect_front
pinstripe check /run/u.control >/tmp/check 2>&1 || die "check: $(cat /tmp/check)"
stop_server
out device_dax yes

say "device DAX that are only looked at"
for name in /dev/dax1.0 pmem:/dev/dax1.0; do
    pinstripe examine $name >/tmp/examined 2>&1 || die "examine $name: $(cat /tmp/examined)"
    grep -q d5 /tmp/examined || die "examine $name: $(cat /tmp/examined)"
done
start --read-only
grep -q "r--s .* /dev/dax1.0\$" /proc/$s_server/maps || die "not mapped to be read: $(cat /proc/$s_server/maps)"
expect_front
stop_server
out looked_at yes
