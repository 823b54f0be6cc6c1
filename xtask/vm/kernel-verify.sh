# The kernel assembles every array of $ARRAYS (lines: name level members chunk layout bitmap missing), without the
# missing members. It must hold just what is expected and scrub clean. With RESTORE=yes the missing members are put in
# again, and all must still hold. At the end $WRITES go to it.
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "assemble $name"
    before=$(sectors_read "$name-0")
    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" "$missing") ||
        die "$name: mdadm does not assemble it"
    [ "$(attribute md9 level)" = "raid$level" ] || die "$name: level $(attribute md9 level)"
    if [ "$level" != 0 ]; then
        wait_idle md9
        out synced "$name $(($(sectors_read "$name-0") - before))"
    fi
    expect_content "$name" /dev/md9
    [ "$level" = 0 ] || [ "$(attribute md9 degraded)" != 0 ] || expect_consistent md9 "$name"
    if [ "$missing" != - ] && [ "$RESTORE" = yes ]; then
        [ "$(attribute md9 degraded)" != 0 ] || die "$name: not degraded, though members are missing"
        for slot in $(echo "$missing" | tr , ' '); do
            mdadm --quiet --zero-superblock "/dev/member/$name-$slot"
            mdadm --quiet /dev/md9 --add "/dev/member/$name-$slot"
        done
        sleep 0.2
        wait_idle md9
        [ "$(attribute md9 degraded)" = 0 ] || die "$name: still degraded: $(cat /proc/mdstat)"
        blockdev --flushbufs /dev/md9
        expect_content "$name, rebuilt" /dev/md9
        expect_consistent md9 "$name, rebuilt"
    fi
    # shellcheck disable=SC2086
    [ -z "$WRITES" ] || xtask pattern write /dev/md9 $WRITES
    stop md9
    out verified "$name"
done 4</tmp/arrays
