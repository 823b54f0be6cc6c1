# The kernel's nvme-tcp and nvme-cli ask our target for all that they know.
. /job/nvme.sh
# The second host of the reservations must not become a second path of the first one's disk.
modprobe nvme_core multipath=N
modprobe nvme-tcp
start_target /dev/member/t-0 /dev/member/t-1

say "discover"
nvme discover -t tcp -a 127.0.0.1 -s 4420 --hostnqn=$HOST --hostid=$HOST_ID >/tmp/discovered || die "nvme discover"
grep -q "subnqn: *$NQN" /tmp/discovered || die "discovery does not name it: $(cat /tmp/discovered)"
grep -q 'trsvcid: *4420' /tmp/discovered || die "discovery has no port: $(cat /tmp/discovered)"
out discovered yes

say "write and read, without and with digests, with few and many queues"
for options in "" "--hdr-digest" "--data-digest" "--hdr-digest --data-digest --nr-io-queues=1" "--disable-sqflow"; do
    # shellcheck disable=SC2086
    connect $options
    # shellcheck disable=SC2046
    xtask pattern write $one $(expected t)
    blockdev --flushbufs $one
    expect_content t $one
    two=$(namespace nvme0 2)
    fio --name=verify --filename=$two --rw=randwrite --bsrange=512-256k --size=16m --io_size=8m --direct=1 \
        --ioengine=psync --numjobs=1 --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio $options: $(tail -n 5 /tmp/fio)"
    disconnect
done
out digests yes

say "commands"
connect --keep-alive-tmo=2
sleep 5
[ "$(cat /sys/class/nvme/nvme0/state)" = live ] || die "keep-alive does not keep it alive"
nvme id-ctrl /dev/nvme0 >/tmp/controller || die id-ctrl
grep -q "subnqn *: *$NQN" /tmp/controller || die "id-ctrl: $(cat /tmp/controller)"
nvme id-ns $one >/tmp/namespace || die id-ns
grep -q 'nsze *: 0x20000' /tmp/namespace || die "id-ns: $(cat /tmp/namespace)"
nvme ns-descs $one | grep -q uuid || die ns-descs
nvme list-ns /dev/nvme0 | grep -q '0x2' || die list-ns
nvme smart-log /dev/nvme0 >/dev/null || die smart-log
nvme error-log /dev/nvme0 >/dev/null || die error-log
nvme effects-log /dev/nvme0 >/dev/null || die effects-log
nvme get-feature /dev/nvme0 -f 7 >/dev/null || die "get-feature 7"
nvme get-feature /dev/nvme0 -f 11 >/dev/null || die "get-feature 11"
nvme get-feature /dev/nvme0 -f 15 | grep -q 0x000007d0 || die "get-feature 15: $(nvme get-feature /dev/nvme0 -f 15)"
nvme get-feature /dev/nvme0 -f 0x81 -l 16 -c 1 >/dev/null 2>&1 || true
nvme id-ctrl /dev/nvme0 --vendor-specific >/dev/null || die "id-ctrl -v"
nvme admin-passthru /dev/nvme0 -o 0xc5 2>/dev/null && die "a vendor command is taken"
nvme get-log /dev/nvme0 -i 0x42 -l 512 >/dev/null 2>&1 && die "an unknown log page is given"

# shellcheck disable=SC2046
xtask pattern write $one $(expected t)
nvme flush $one || die flush
dd if=$one of=/tmp/block bs=4096 count=1 2>/dev/null
nvme compare $one -s 0 -c 7 -z 4096 -d /tmp/block || die "compare of equal data"
nvme compare $one -s 8 -c 7 -z 4096 -d /tmp/block 2>/dev/null && die "compare of other data"
nvme write $one -s 2048 -c 7 -z 4096 -d /tmp/block --force-unit-access || die "write with FUA"
nvme read $one -s 2048 -c 7 -z 4096 -d /tmp/again || die read
cmp /tmp/block /tmp/again || die "FUA write: other data is read"
nvme write-zeroes $one -s 2048 -c 7 || die write-zeroes
nvme read $one -s 2048 -c 7 -z 4096 -d /tmp/again || die read
cmp -n 4096 /tmp/again /dev/zero || die "write-zeroes leaves data"
nvme write-zeroes $one -s 0 -c 7 --deac || die "write-zeroes with deallocation"
nvme dsm $one -s 0,64 -b 8,8 -a 0,0 --ad || die dsm
blkdiscard $one || die blkdiscard
nvme write $one -s 131072 -c 7 -z 4096 -d /tmp/block 2>/dev/null && die "a write past the end is taken"
out commands yes

say "reservations"
nvme resv-register $one --nrkey=0xa --rrega=0 --cptpl=0 || die register
nvme resv-acquire $one --crkey=0xa --rtype=1 --racqa=0 || die acquire
nvme resv-report $one --eds >/tmp/report || die report
grep -q 'rtype *: *1' /tmp/report || die "report: $(cat /tmp/report)"
# Not by nvme-cli, which takes the other host for the same.
echo "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=$NQN,hostnqn=nqn.2026-01.com.example:other,\
hostid=99999999-2222-3333-4444-555555555555,duplicate_connect" | tr -d '\n' >/dev/nvme-fabrics || die "a second host"
other=$(namespace nvme1 1)
wait_for $other
dd if=/tmp/block of=$other bs=4096 count=1 oflag=direct 2>/dev/null && die "a host without the reservation writes"
dd if=$other of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null || die "a host without the reservation can't read"
nvme resv-register $other --nrkey=0xb --rrega=0 --cptpl=0 || die "register the second host"
nvme resv-acquire $other --crkey=0xb --prkey=0xa --rtype=1 --racqa=2 || die "preempt and abort"
dd if=/tmp/block of=$other bs=4096 count=1 oflag=direct 2>/dev/null || die "the new holder can't write"
dd if=/tmp/block of=$one bs=4096 count=1 oflag=direct 2>/dev/null && die "a preempted host writes"
nvme resv-release $other --crkey=0xb --rtype=1 --rrela=0 || die release
nvme disconnect -d /dev/nvme1 || die "disconnect the second host"
out reservations yes

say "ext4"
two=$(namespace nvme0 2)
mkfs.ext4 -q -F $two || die mkfs
mount -t ext4 -o discard $two /mnt
cp -a /sbin /mnt/ || die "copy: $(df /mnt | tail -n 1)"
(cd /sbin && sha256sum ./* 2>/dev/null) >/tmp/sums
umount /mnt
fsck.ext4 -fn $two || die fsck
disconnect
connect
two=$(namespace nvme0 2)
wait_for $two
mount -t ext4 -o ro $two /mnt
(cd /mnt/sbin && sha256sum -c /tmp/sums >/tmp/differences 2>&1) || die "copies differ: $(grep -v ': OK' /tmp/differences | head -n 3)"
umount /mnt
disconnect
stop_target
out filesystem yes
