# A file system on every export of $EXPORTS (lines: name port), served by the host. With FRESH=yes it is made and filled,
# otherwise it must hold what was put there, and takes a second copy.
copy() {
    mkdir "/mnt/$1"
    cp -a /sbin /lib "/mnt/$1/"
}

compare() {
    (cd "/mnt/$1" && find . -type f -exec sha256sum {} +) >/tmp/sums
    [ "$(wc -l </tmp/sums)" -gt 50 ] || die "$2: only $(wc -l </tmp/sums) files"
    (cd / && sha256sum -c /tmp/sums >/tmp/differences 2>&1) ||
        die "$2: copies differ: $(grep -v ': OK' /tmp/differences | head -n 3)"
}

echo "$EXPORTS" >/tmp/exports
while read -r name port <&4; do
    say "connect $name"
    nbd-client 10.0.2.2 "$port" /dev/nbd0 || die "$name: nbd-client does not connect"
    if [ "$FRESH" = yes ]; then
        mkfs.ext4 -q -F /dev/nbd0
    fi
    fsck.ext4 -fn /dev/nbd0 || die "$name: not clean before it is mounted"
    mount -t ext4 /dev/nbd0 /mnt
    if [ "$FRESH" = yes ]; then
        copy first
    else
        compare first "$name"
        copy second
        rm -r /mnt/first/lib
    fi
    umount /mnt
    blockdev --flushbufs /dev/nbd0
    fsck.ext4 -fn /dev/nbd0 || die "$name: not clean after it was written"
    mount -t ext4 -o ro /dev/nbd0 /mnt
    if [ "$FRESH" = yes ]; then
        compare first "$name"
    else
        compare second "$name"
    fi
    umount /mnt
    nbd-client -d /dev/nbd0
    out clean "$name"
done 4</tmp/exports
