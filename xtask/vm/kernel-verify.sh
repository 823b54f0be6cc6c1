# The kernel assembles every array of $ARRAYS, which must hold just $EXPECTED and scrub clean; then $WRITES go to it.
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap <&4; do
    say "assemble $name"
    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(members "$name" "$count") || die "$name: mdadm does not assemble it"
    [ "$(attribute md9 level)" = "raid$level" ] || die "$name: level $(attribute md9 level)"
    blocks=$(($(blockdev --getsize64 /dev/md9) / 4096))
    # shellcheck disable=SC2086
    xtask pattern verify /dev/md9 "$blocks" $EXPECTED 2>/tmp/error || die "$name: $(cat /tmp/error)"
    if [ "$level" != 0 ]; then
        wait_idle md9
        [ "$(attribute md9 degraded)" != 0 ] || expect_consistent md9 "$name"
    fi
    # shellcheck disable=SC2086
    [ -z "$WRITES" ] || xtask pattern write /dev/md9 $WRITES
    stop md9
    out verified "$name"
done 4</tmp/arrays
