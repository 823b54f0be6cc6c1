# What users put on a block device, on ours: LVM, on it LUKS, on that XFS; memory that is short; then a reboot under load.
. /job/ublk.sh
. /job/stack.sh
create u5
modprobe ublk_drv
start
consistent

say "LVM, LUKS, XFS"
pvcreate -q $device >/tmp/lvm 2>&1 || die "pvcreate: $(cat /tmp/lvm)"
# LVM aligns what it gives out to whole stripes, by the limits that it is told.
[ "$(pvs --noheadings --nosuffix --units b -o pe_start $device | tr -d ' ')" = 1048576 ] ||
    die "extents begin at $(pvs --noheadings -o pe_start $device)"
vgcreate -q stack $device >/tmp/lvm 2>&1 && lvcreate -q -n secret -L 400M stack >/tmp/lvm 2>&1 || die "lvm: $(cat /tmp/lvm)"
printf %s "$PASSPHRASE" | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 /dev/stack/secret - >/tmp/luks 2>&1 ||
    die "luksFormat: $(cat /tmp/luks)"
unlock
mkfs.xfs -q /dev/mapper/secret || die mkfs.xfs
mount -t xfs /dev/mapper/secret /mnt || die mount
top=$(readlink -f /dev/mapper/secret)
for limit in minimum_io_size=65536 optimal_io_size=262144; do
    found=$(cat "/sys/block/${top##*/}/queue/${limit%=*}")
    [ "$found" = "${limit#*=}" ] || die "$limit is $found through LVM and LUKS"
done
cp -a /sbin /mnt/ || die copy
sync
(cd /mnt/sbin && sha256sum ./* 2>/dev/null) >/mnt/sums
fstrim /mnt || die "no discard through LVM"
consistent
out stacked yes

say "dirty pages in a small cgroup, and a server in one"
mkdir -p /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/writer /sys/fs/cgroup/server
echo 12M >/sys/fs/cgroup/writer/memory.max
echo 128M >/sys/fs/cgroup/server/memory.max
echo $s_server >/sys/fs/cgroup/server/cgroup.procs
# write_much FILE: within the small cgroup, and within a minute.
write_much() {
    timeout 60 sh -c "echo \$\$ >/sys/fs/cgroup/writer/cgroup.procs; exec dd if=/dev/zero of=$1 bs=64k count=1600 conv=fsync" \
        >/tmp/dd 2>&1 || die "$1: $(cat /tmp/dd; dmesg | tail -n 20)"
}
write_much /mnt/small
rm /mnt/small

say "dirty pages where no memory is left"
# What is there without the last 24 MiB.
free=$(awk '/MemAvailable/ { print int($2 / 1024) - 24 }' /proc/meminfo)
mkdir -p /tmp/hog
mount -t tmpfs -o size=100% none /tmp/hog
echo 1000 >/proc/self/oom_score_adj
dd if=/dev/zero of=/tmp/hog/hog bs=1M count="$free" 2>/dev/null || die "the hog finds no memory: $free MiB"
timeout 60 dd if=/dev/zero of=/mnt/big bs=1M count=100 conv=fsync >/tmp/dd 2>&1 || die "big: $(cat /tmp/dd; dmesg | tail -n 20)"
rm /mnt/big
umount /tmp/hog
kill -0 $s_server || die "the server is gone: $(dmesg | tail -n 20)"
grep -q 'Out of memory' /tmp/serve.log && die "serve: $(cat /tmp/serve.log)"
consistent
out short yes

say "a reboot under load"
while :; do
    dd if=/dev/zero of=/mnt/load bs=64k count=400 conv=fsync 2>/dev/null
done &
sleep 2
out rebooted yes
echo "@exit 0" >&3
reboot -f
sleep 60
