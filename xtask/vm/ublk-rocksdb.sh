# RocksDB on our server's device: the server is killed in the middle of durable writes, and the database goes on.
. /job/ublk.sh
modprobe ublk_drv
create u5
start
mkfs.ext4 -q -F $device || die mkfs
mount -t ext4 $device /mnt || die mount

ycsb run /mnt/database --workload a --records 1000 --threads 4 --sync --seconds 12 --ledger /tmp/ledger >/tmp/report 2>&1 &
f_ycsb=$!
# Its writes begin when all records are loaded.
tries=0
until [ "$(dd if=/tmp/ledger bs=8 skip=1 2>/dev/null | od -An -v -td8 -w8 | awk '$1 > 1' | wc -l)" -gt 10 ]; do
    kill -0 $f_ycsb || die "the client has ended: $(cat /tmp/report)"
    tries=$((tries + 1))
    [ $tries -lt 300 ] || die "nothing is written"
    sleep 0.1
done
kill_under 3 0.5 $f_ycsb /tmp/report
# It verifies every record in the database opened anew.
wait $f_ycsb || die "the client: $(cat /tmp/report)"
cat /tmp/report
# What is on the array, and not what the guest remembers.
umount /mnt
fsck.ext4 -fn $device || die fsck
mount -t ext4 $device /mnt || die mount
ycsb verify /mnt/database --ledger /tmp/ledger || die "verify"
sst_dump --file=/mnt/database --command=verify --verify_checksum >/tmp/checksums 2>&1 || die "sst_dump: $(cat /tmp/checksums)"
grep -qi corrupt /tmp/checksums && die "sst_dump: $(cat /tmp/checksums)"
grep -q "file is ok" /tmp/checksums || die "sst_dump found no table: $(cat /tmp/checksums)"
umount /mnt
consistent
stop_server
out done yes
