# After the reboot of ublk-stack.sh: all is there again.
. /job/ublk.sh
. /job/stack.sh
modprobe ublk_drv
start
vgchange -q -ay stack >/tmp/lvm 2>&1 || die "vgchange: $(cat /tmp/lvm)"
unlock
mount -t xfs /dev/mapper/secret /mnt || die "mount: $(dmesg | tail -n 5)"
dmesg | grep -q 'XFS (.*): Starting recovery' || die "the reboot found nothing to do"
(cd /mnt/sbin && sha256sum -c ../sums >/tmp/differences 2>&1) || die "copies differ: $(grep -v ': OK' /tmp/differences | head -n 3)"
umount /mnt
xfs_repair -n /dev/mapper/secret >/tmp/repair 2>&1 || die "xfs_repair: $(cat /tmp/repair)"
cryptsetup close secret || die close
vgchange -q -an stack >/tmp/lvm 2>&1 || die "vgchange: $(cat /tmp/lvm)"
consistent
stop_server
out again yes
