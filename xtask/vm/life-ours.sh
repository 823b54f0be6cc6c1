# The kernel takes arrays of ours over in the middle of their lives: $ARRAYS (lines: name level members chunk layout bitmap
# missing). What is to happen to one is the start of its name: a member comes back (readd), a device is half copied to
# (replace) or half rebuilt (rebuild), a spare waits (spare); /dev/member/NAME-new is that device. In the end each must be
# complete, hold what is expected, and scrub clean.
fast_sync

# start_still DEVICE...: assembles it read-only, so that nothing is recovered before we have looked.
start_still() {
    mdadm --assemble /dev/md9 --quiet --readonly --run "$@" || die "$name: mdadm does not assemble it"
}

# go_on: what start_still held up, and how far the new device was and how many sectors were written to it.
go_on() {
    g_start=$(member_attribute md9 "$name-new" recovery_start)
    g_before=$(sectors_written "$name-new")
    mdadm --quiet --readwrite /dev/md9
    wait_for_slot md9 1 "$name-new"
    out resumed "$name $g_start $(($(sectors_written "$name-new") - g_before))"
}

# bring_back: the missing members come back by the bitmap.
bring_back() {
    for slot in $(echo "$missing" | tr , ' '); do
        b_before=$(sectors_written "$name-$slot")
        mdadm --quiet /dev/md9 --re-add "/dev/member/$name-$slot" || die "$name: mdadm does not re-add slot $slot"
        wait_for_slot md9 "$slot" "$name-$slot"
        out readded "$name $(($(sectors_written "$name-$slot") - b_before))"
    done
}

echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "take over $name"
    # shellcheck disable=SC2046
    case $name in
    readd*)
        mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" "$missing") || die "$name: not assembled"
        bring_back
        ;;
    replace*)
        start_still $(present "$name" "$count" -) "/dev/member/$name-new"
        member_attribute md9 "$name-new" state | grep -q replacement || die "$name: the new device is no replacement"
        go_on
        member_attribute md9 "$name-1" state | grep -q faulty || die "$name: the old member is not faulty"
        ;;
    rebuild*)
        start_still $(present "$name" "$count" "$missing") "/dev/member/$name-new"
        go_on
        ;;
    spare*)
        mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" -) "/dev/member/$name-new" ||
            die "$name: not assembled"
        mdadm --quiet /dev/md9 --fail "/dev/member/$name-1"
        wait_for_slot md9 1 "$name-new"
        mdadm --quiet /dev/md9 --remove "/dev/member/$name-1"
        ;;
    esac
    wait_idle md9
    [ "$(attribute md9 degraded)" = 0 ] || die "$name: degraded: $(cat /proc/mdstat)"
    blockdev --flushbufs /dev/md9
    expect_content "$name" /dev/md9
    expect_consistent md9 "$name"
    stop md9
    out taken "$name"
done 4</tmp/arrays
