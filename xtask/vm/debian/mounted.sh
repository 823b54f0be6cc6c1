# After the reboot: everything is there, without a hand.
. /job/lib.sh
. /job/debian.sh
booted
mounted /srv/data /dev/pinstripe/data
mounted /srv/net /dev/pinstripe/net
mounted /srv/md /dev/md0
only_md0
rm -r /etc/systemd/system/pinstripe@net.service.d && systemctl daemon-reload || die "late.conf"
same_files
in_sync data 4 && in_sync net 3 || die "members are missing: $(cat /tmp/detail)"
for array in data net; do
    # The machine went down in order, so nothing had to be resynced.
    ! journalctl --boot --unit pinstripe@$array | grep -i resync || die "$array was not stopped in order"
done
[ "$(systemctl is-active pinstripe@home)" = active ] || die "what was imported is not served"
mount /dev/pinstripe/home /srv/home || die "mount home"
cmp /usr/bin/perl /srv/home/perl || die "what was in memory at the reboot is lost"
# By hand: no file of the generator names it.
systemctl stop pinstripe@home && is_inactive pinstripe@home || die "stop home: $(journalctl -u pinstripe@home --no-pager)"
! findmnt /srv/home || die "the array was stopped under its file system"
systemctl start pinstripe@home && mount /dev/pinstripe/home /srv/home || die "start home again"

say "the target is there, and comes again"
serves_t0
target=$(main_pid pinstripe-target@store)
kill -KILL "$target"
until_true 60 "the target is not started again" is_another pinstripe-target@store "$target"
serves_t0
# Without our rules, when the package is removed, it would be mdadm's.
systemctl stop pinstripe-target@store && mdadm --zero-superblock "$(by_id t0 | tr -d ' ')" || die "zero t0"
systemctl start pinstripe-target@store || die "start the target: $(journalctl -u pinstripe-target@store --no-pager)"

say "it goes back to mdadm"
umount /srv/home || die "umount home"
pinstripe release home --assemble || die "release"
grep -q '^md[0-9]* : active .*raid5' /proc/mdstat || die "mdadm does not have it: $(cat /proc/mdstat)"
until_true 60 "its unit is not inactive" is_inactive pinstripe@home
# udev makes its name and looks into it; as long as it has it open, it can't be stopped.
udevadm settle
until_true 60 "mdadm --stop" mdadm --stop /dev/md/*home*
mdadm --zero-superblock $(by_id h0 h1 h2) || die "mdadm --zero-superblock"
only_md0
out step rebooted
[ ! -e /job/service.sh ] || . /job/service.sh
