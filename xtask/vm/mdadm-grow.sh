# mdadm gives every array of $ARRAYS (lines: name level members chunk layout bitmap missing) another shape: no bitmap, all
# of its members, and one member more. It must hold just what is expected and scrub clean.
fast_sync

# grow OPTION...: mdadm changes the array.
grow() {
    mdadm --grow /dev/md9 "$@" >/tmp/mdadm 2>&1 || die "$name: --grow $*: $(cat /tmp/mdadm)"
}

echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "grow $name ($layout, $chunk, without $missing)"
    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(seats "$name" "$count" -) || die "$name: mdadm does not assemble it"
    [ "$(attribute md9 level)" = "raid$level" ] || die "$name: level $(attribute md9 level)"
    wait_idle md9
    [ "$bitmap" = none ] || grow --bitmap=none
    before=$(blockdev --getsz /dev/md9)
    grow --size=max
    wait_idle md9
    [ "$(blockdev --getsz /dev/md9)" -gt "$before" ] || die "$name: it is no larger than $before sectors"
    expect_content "$name, larger" /dev/md9
    expect_consistent md9 "$name, larger"

    mdadm --quiet /dev/md9 --add "/dev/member/$name-$count" || die "$name: mdadm does not add a member"
    more=$((count + 1))
    grow --raid-devices=$more --backup-file="/tmp/backup-$name"
    tries=0
    until [ "$(attribute md9 raid_disks),$(attribute md9 sync_action)" = "$more,idle" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || die "$name: the reshape does not end: $(cat /proc/mdstat)"
        sleep 0.1
    done
    [ "$(attribute md9 degraded)" = 0 ] || die "$name: degraded: $(cat /proc/mdstat)"
    expect_content "$name, wider" /dev/md9
    expect_consistent md9 "$name, wider"
    blockdev --flushbufs /dev/md9
    # The program that looked after the reshape may have the array open for a moment.
    tries=0
    until mdadm --quiet --stop /dev/md9 2>/tmp/mdadm; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || die "$name: $(cat /tmp/mdadm)"
        sleep 0.1
    done
    out grown "$name"
done 4</tmp/arrays
