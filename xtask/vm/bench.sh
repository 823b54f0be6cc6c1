# Arrays on RAM disks, served by MD and by us in turns. brd and not null_blk: a request to brd is a copy at once, without a queue and
# without a lock of the whole disk (memory-backed null_blk has both), so that what is measured is the RAID above it.
modprobe brd rd_nr="$DISKS" rd_size="$DISK_KIB" || die "no brd"
modprobe raid456 && modprobe ublk_drv || die "no raid456 or no ublk_drv"
out kernel "Linux $(uname -r)"
disks=
disk=0
while [ $disk -lt "$DISKS" ]; do
    disks="$disks /dev/ram$disk"
    disk=$((disk + 1))
done
# Options are lines, for they may have spaces in them.
IFS='
'
set -f
set -- $OPTIONS
unset IFS
# shellcheck disable=SC2086
xtask bench inside "$@" --pinstripe /sbin/pinstripe $disks >&3 2>/tmp/progress &
inside=$!
while [ -d /proc/$inside ]; do
    sleep 1
    # What is new.
    tail -n +$((${shown:-0} + 1)) /tmp/progress
    shown=$(wc -l </tmp/progress)
done
wait $inside || die "$(tail -n 1 /tmp/progress)"
