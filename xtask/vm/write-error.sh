# Arrays of $ARRAYS (lines: name level members chunk layout bitmap missing) are made by our command in the guest. Then the
# first chunks of slot 1 refuse all I/O (dm-error). A write must succeed, the data must be right, and the kernel must find the
# sectors in the member's bad-block log and make them from the others.
. /job/serve.sh
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "create $name"
    create_and_fill
    bad=/dev/member/$name-1
    start=$(data_offset "$bad")
    put_under "$bad" "$start" $((chunk * 8)) "error"
    # shellcheck disable=SC2046
    serve $(present "$name" "$count" 1) /dev/mapper/bad
    # shellcheck disable=SC2046
    xtask pattern write /dev/nbd0 $(expected "$name") || die "$name: a sector that refuses fails the write"
    blockdev --flushbufs /dev/nbd0
    expect_content "$name, with a write error" /dev/nbd0
    stop_serving
    dmsetup remove bad

    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" -) || die "$name: mdadm does not assemble it"
    [ "$(attribute md9 degraded)" = 0 ] || die "$name: degraded is $(attribute md9 degraded), expected 0"
    # Lines: first sector of the device, sectors.
    member_attribute md9 "$name-1" bad_blocks >/tmp/bad
    cat /tmp/bad
    [ -s /tmp/bad ] || die "$name: the kernel finds no bad blocks"
    while read -r first sectors; do
        [ "$first" -ge "$start" ] && [ $((first + sectors)) -le $((start + chunk * 8)) ] ||
            die "$name: sectors $first + $sectors are listed as bad, which are not"
    done </tmp/bad
    for other in $(seats "$name" "$count" 1); do
        [ -z "$(member_attribute md9 "${other##*/}" bad_blocks)" ] || die "$name: bad blocks on $other"
    done
    # What lies under them is wrong: only from the others is it right.
    expect_content "$name, with bad blocks" /dev/md9
    stop md9
    out listed "$name"
done 4</tmp/arrays
