# What users put on a block device, on ours: LVM, on it LUKS, on that XFS; memory that is short; then a reboot under load.
. /job/ublk.sh
. /job/stack.sh
create u5
modprobe ublk_drv
mkdir -p /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/server
echo 256M >/sys/fs/cgroup/server/memory.max
# What is started here is in the group, and stays there.
echo $$ >/sys/fs/cgroup/server/cgroup.procs
start
echo $$ >/sys/fs/cgroup/cgroup.procs
consistent

say "LVM, LUKS, XFS"
pvcreate -q $device >/tmp/lvm 2>&1 || die "pvcreate: $(cat /tmp/lvm)"
# Its extents begin with a whole stripe.
[ "$(pvs --noheadings --nosuffix --units b -o pe_start $device | tr -d ' ')" = 1048576 ] ||
    die "extents begin at $(pvs --noheadings -o pe_start $device)"
vgcreate -q stack $device >/tmp/lvm 2>&1 && lvcreate -q -n secret -L 400M stack >/tmp/lvm 2>&1 || die "lvm: $(cat /tmp/lvm)"
printf %s "$PASSPHRASE" | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 /dev/stack/secret - >/tmp/luks 2>&1 ||
    die "luksFormat: $(cat /tmp/luks)"
unlock
# It is told chunk and stripe through both layers, in blocks of 512 bytes, and says why so small a disk has no use for them.
mkfs.xfs -q /dev/mapper/secret >/tmp/mkfs 2>&1 || die "mkfs.xfs: $(cat /tmp/mkfs)"
grep -q 'stripe unit 128 and stripe width 512' /tmp/mkfs || die "mkfs.xfs doesn't see the stripes: $(cat /tmp/mkfs)"
mount -t xfs /dev/mapper/secret /mnt || die mount
cp -a /sbin /mnt/ || die copy
sync
(cd /mnt/sbin && sha256sum ./* 2>/dev/null) >/mnt/sums
fstrim /mnt || die "no discard through LUKS and LVM"
consistent
out stacked yes

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
grep -q '^oom_kill 0' /sys/fs/cgroup/server/memory.events || die "killed: $(dmesg | grep 'Killed process')"
consistent
out short yes

say "a reboot under load"
sync
while :; do
    dd if=/dev/zero of=/mnt/load bs=64k count=400 conv=fsync 2>/dev/null
done &
sleep 2
[ -s /mnt/load ] || die "there is no load: $(df /mnt)"
out rebooted yes
echo "@exit 0" >&3
# Without a last sync.
reboot -nf
sleep 60
die "it does not reboot"
