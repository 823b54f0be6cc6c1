# Arrays of $ARRAYS (lines: name level members chunk layout bitmap missing) are made by our command in the guest. Then the
# first chunks of slot 1 refuse all I/O (dm-error). A write must succeed without that member, the data must be right, and
# the kernel must find the member out of the array.
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
    xtask pattern write /dev/nbd0 $(expected "$name") || die "$name: a failed member fails the write"
    blockdev --flushbufs /dev/nbd0
    expect_content "$name, with a write error" /dev/nbd0
    stop_serving
    dmsetup remove bad

    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" -) || die "$name: mdadm does not assemble it"
    [ "$(attribute md9 degraded)" = 1 ] || die "$name: degraded is $(attribute md9 degraded), expected 1"
    expect_content "$name, degraded" /dev/md9
    stop md9
    out degraded "$name"
done 4</tmp/arrays
