# Arrays of $ARRAYS (lines: name level members chunk layout bitmap missing) are made by our command in the guest. Then the
# first chunk of slot 1, which holds data, is wiped, and dm-flakey refuses to read it. Served over NBD the array must hold
# what is expected all the same, and the chunk must be written anew: without dm-flakey the kernel finds all of it.
. /job/serve.sh
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "create $name"
    create_and_fill
    bad=/dev/member/$name-1
    start=$(data_offset "$bad")
    length=$((chunk * 2))
    dd if=/dev/zero of="$bad" bs=512 seek="$start" count="$length" conv=fsync 2>/dev/null
    blockdev --flushbufs "$bad"

    say "$name: sectors $start to $((start + length)) of $bad do not read"
    put_under "$bad" "$start" "$length" "flakey $(readlink -f "$bad") $start 0 3600 1 error_reads"
    if dd if=/dev/mapper/bad of=/dev/null bs=512 skip="$start" count=1 iflag=direct 2>/dev/null; then
        die "$name: dm-flakey lets it read"
    fi
    # shellcheck disable=SC2046
    serve $(present "$name" "$count" 1) /dev/mapper/bad
    expect_content "$name, with a read error" /dev/nbd0
    stop_serving
    dmsetup remove bad

    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" -) || die "$name: mdadm does not assemble it"
    [ "$(attribute md9 degraded)" = 0 ] || die "$name: a read error has failed a member"
    expect_content "$name" /dev/md9
    expect_consistent md9 "$name"
    stop md9
    out rewritten "$name"
done 4</tmp/arrays
