# An array of mdadm's with a file system, taken over by `pinstripe import`, and given back by `pinstripe release`.
disks="/dev/member/u-0 /dev/member/u-1 /dev/member/u-2 /dev/member/u-3"
modprobe ublk_drv
mkdir -p /etc/mdadm /etc/pinstripe
export PINSTRIPE_CONFIG=/etc/pinstripe/pinstripe.toml
printf '[defaults]\nublk = true\nshards = 1\n' >$PINSTRIPE_CONFIG
# shellcheck disable=SC2086
mdadm --create /dev/md/home --name home --level 5 --raid-devices 4 --chunk 64 --bitmap internal --assume-clean --run $disks \
    >/tmp/mdadm 2>&1 || die "create: $(cat /tmp/mdadm)"
mdadm --detail --scan >/etc/mdadm/mdadm.conf
cp /etc/mdadm/mdadm.conf /tmp/conf
uuid=$(mdadm --detail --export /dev/md/home | sed -n 's/^MD_UUID=//p')
mkfs.ext4 -q -F /dev/md/home && mount -t ext4 /dev/md/home /mnt || die "no file system"
cp -a /sbin /mnt/ && (cd /mnt/sbin && sha256sum ./* 2>/dev/null) >/tmp/sums || die copy

# same: the file system is whole, with the files that were written.
same() {
    mount -t ext4 "$1" /mnt || die "mount $1: $(dmesg | tail -n 5)"
    (cd /mnt/sbin && sha256sum -c /tmp/sums >/tmp/differences 2>&1) || die "differs on $1: $(grep -v ': OK' /tmp/differences | head -n 3)"
}

say "what is in use is refused"
pinstripe import /dev/md/home >/tmp/import 2>&1 && die "imported, and it is mounted"
grep -q 'is mounted on /mnt' /tmp/import || die "refused, for another reason: $(cat /tmp/import)"
cmp /tmp/conf /etc/mdadm/mdadm.conf || die "refused, and mdadm.conf is changed"
umount /mnt
out refused yes

say "what something has the kernel take again stays mdadm's"
{
    until [ -z "$(ls -d /sys/block/md* 2>/dev/null)" ]; do
        sleep 0.05
    done
    # Again and again, until that is given up.
    while [ ! -e /tmp/refused ]; do
        # shellcheck disable=SC2086
        mdadm --assemble /dev/md/home --config /tmp/conf $disks >/dev/null 2>&1 || true
        sleep 0.2
    done
} &
taker=$!
pinstripe import /dev/md/home >/tmp/import 2>&1 && die "imported, and the kernel has it"
: >/tmp/refused
wait $taker
grep -q 'again' /tmp/import || die "refused, for another reason: $(cat /tmp/import)"
cmp /tmp/conf /etc/mdadm/mdadm.conf || die "refused, and mdadm.conf is changed"
[ -z "$(ls /etc/pinstripe/conf.d 2>/dev/null)" ] || die "refused, and configured: $(ls /etc/pinstripe/conf.d)"
[ -e /dev/md/home ] || die "mdadm does not have it: $(cat /proc/mdstat)"

say "import"
pinstripe import /dev/md/home >/tmp/import 2>&1 || die "import: $(cat /tmp/import)"
# The kernel takes a stopped array's device away on a thread of its own.
tries=0
while [ -e /sys/block/md127 ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || die "md still has it: $(cat /proc/mdstat)"
    sleep 0.1
done
same /dev/ublkb0
cp /tmp/sums /mnt/by-us && umount /mnt
pinstripe check home || die "parity does not match"
# Its server is gone, and mdadm does not take it.
pinstripe stop home || die stop
mdadm --assemble --scan >/tmp/mdadm 2>&1 || true
for disk in $disks; do
    mdadm --incremental "$disk" >>/tmp/mdadm 2>&1 || true
done
[ -z "$(ls -d /sys/block/md* 2>/dev/null)" ] || die "mdadm took it: $(cat /tmp/mdadm /proc/mdstat)"
pinstripe assemble --scan >/tmp/assemble 2>&1 || die "assemble: $(cat /tmp/assemble)"
same /dev/ublkb0
umount /mnt
out imported yes

say "release"
pinstripe release --assemble "$uuid" >/tmp/release 2>&1 || die "release: $(cat /tmp/release)"
[ -z "$(pinstripe ublk list)" ] || die "a device is left"
cmp /tmp/conf /etc/mdadm/mdadm.conf || die "mdadm.conf is another one: $(cat /etc/mdadm/mdadm.conf)"
same /dev/md/home
cmp /tmp/sums /mnt/by-us || die "what was written by us is gone"
umount /mnt
md=$(basename "$(readlink -f /dev/md/home)")
[ "$(cat "/sys/block/$md/md/array_state")" != inactive ] || die "it is inactive"
[ "$(cat "/sys/block/$md/md/sync_action")" = idle ] || die "the kernel resyncs it: $(cat /proc/mdstat)"
echo check >"/sys/block/$md/md/sync_action"
until [ "$(cat "/sys/block/$md/md/sync_action")" = idle ]; do
    sleep 0.2
done
[ "$(cat "/sys/block/$md/md/mismatch_cnt")" = 0 ] || die "parity does not match in the kernel"
pinstripe assemble --scan >/tmp/assemble 2>&1 || die "assemble: $(cat /tmp/assemble)"
grep -q '^no array is configured to be started' /tmp/assemble || die "$(cat /tmp/assemble)"
out released yes
