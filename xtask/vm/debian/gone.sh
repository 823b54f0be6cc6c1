# Without the package mdadm assembles what we served, with all that was written: nothing of ours stands in the way.
. /job/lib.sh
. /job/debian.sh
booted
[ "$(grep -c '^md.*active raid5' /proc/mdstat)" = 2 ] || die "mdadm does not assemble our arrays: $(cat /proc/mdstat)"
for place in data net; do
    mount -o ro "/dev/md/$place" /srv/$place || mount -o ro "/dev/md/debian:$place" /srv/$place || die "$place: $(ls /dev/md)"
done
same_files
for md in /sys/block/md*/md; do
    [ "$(cat "$md/degraded")" = 0 ] || die "$md is degraded: $(cat /proc/mdstat)"
done
out step back-with-mdadm
