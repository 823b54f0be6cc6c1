# Arrays of $ARRAYS (lines: name level members chunk layout bitmap missing) are made by our command in the guest. Then the
# first chunk of slot 1, which holds data, is wiped, and dm-flakey refuses to read it. Served over NBD the array must hold
# what is expected all the same, and the chunk must be written anew: without dm-flakey the kernel finds all of it. While the
# kernel runs the array, its members are refused by the array's name.
. /job/serve.sh

# digest: of all bytes of the members, past the page cache.
digest() {
    for d_member in $(present "$name" "$count" -); do
        dd if="$d_member" bs=1M iflag=direct 2>/dev/null
    done | md5sum
}

# expect_refusal COMMAND...: our command must fail on the members, because of the running array.
expect_refusal() {
    r_status=0
    # shellcheck disable=SC2046
    timeout 30 pinstripe "$@" $(present "$name" "$count" -) >/tmp/said 2>&1 || r_status=$?
    [ $r_status = 1 ] || die "$name: $1 of a running array's members: status $r_status: $(cat /tmp/said)"
    grep -q 'is a member of the running array /dev/md9' /tmp/said || die "$name: $1 does not name it: $(cat /tmp/said)"
}

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
    # Nothing but us may write to the members now.
    mdadm --readonly /dev/md9
    before=$(digest)
    expect_refusal serve --nbd unix:/run/refused.nbd --control /run/refused.control
    expect_refusal create --force --name "$name" --level "$level" --chunk "${chunk}K" --layout "$layout"
    [ "$before" = "$(digest)" ] || die "$name: refused, but changed"
    stop md9
    out rewritten "$name"
done 4</tmp/arrays
