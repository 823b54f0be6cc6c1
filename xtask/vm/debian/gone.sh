# Without the package mdadm assembles what we served, with all that was written: nothing of ours stands in the way.
. /job/lib.sh
. /job/debian.sh
booted
# assembled: mdadm has both. Until it is written, an array of which mdadm.conf says nothing is auto-read-only, and its name has
# a number.
assembled() {
    cat /proc/mdstat
    [ "$(grep -c '^md[0-9]* : active \((auto-read-only) \)*raid5 ' /proc/mdstat)" = 2 ] || return 1
    # udev makes their names a while after the kernel has them.
    ls /dev/md
    [ -b /dev/md/data_0 ] && [ -b /dev/md/net_0 ]
}
# udev has mdadm assemble them, disk by disk, and the boot doesn't wait for that.
until_true 60 "mdadm does not assemble our arrays" assembled
for place in data net; do
    mount -o ro "/dev/md/${place}_0" /srv/$place || die "$place: $(ls /dev/md)"
done
same_files
for md in /sys/block/md*/md; do
    [ "$(cat "$md/degraded")" = 0 ] || die "$md is degraded: $(cat /proc/mdstat)"
done
out step back-with-mdadm
