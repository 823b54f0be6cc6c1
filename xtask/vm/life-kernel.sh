# mdadm makes arrays and leaves them in the middle of their lives: $ARRAYS (lines: name level members chunk layout bitmap
# missing). What happens to one is the start of its name: it loses members and is written (readd), a device is half copied to
# (replace) or half rebuilt (rebuild), a spare waits (spare), two blocks of slot 1 are bad, $BAD sectors into its data (bad); /dev/member/NAME-new is that device.
# Each holds what is expected and then gets $WRITES. Those whose name ends in -cut are not stopped: at the end the power is
# cut, and the others are.
fast_sync

# recovered_half MD: until the recovery stands at its sync_max, and the superblock of the new device says so.
recovered_half() {
    r_tries=0
    until mdadm --examine "/dev/member/$name-new" | grep -q 'Recovery Offset : [1-9]'; do
        r_tries=$((r_tries + 1))
        [ $r_tries -lt 3000 ] || die "$name: no recovery: $(cat /proc/mdstat)"
        sleep 0.1
    done
}

# lose SLOTS: fails and removes these members.
lose() {
    for l_slot in $(echo "$1" | tr , ' '); do
        mdadm --quiet "/dev/$md" --fail "/dev/member/$name-$l_slot"
        mdadm --quiet "/dev/$md" --remove "/dev/member/$name-$l_slot"
    done
}

# change: what happens to the array.
change() {
    # On members of 12 MiB; a whole number of chunks.
    echo 10240 >"/sys/block/$md/md/sync_max"
    case $name in
    readd*)
        wait_bitmap_clear "$name"
        lose "$missing"
        ;;
    replace*)
        mdadm --quiet "/dev/$md" --add "/dev/member/$name-new"
        mdadm --quiet "/dev/$md" --replace "/dev/member/$name-1" --with "/dev/member/$name-new"
        recovered_half
        ;;
    rebuild*)
        lose 1
        mdadm --quiet "/dev/$md" --add "/dev/member/$name-new"
        recovered_half
        ;;
    spare*) mdadm --quiet "/dev/$md" --add "/dev/member/$name-new" ;;
    bad*)
        b_start=$(mdadm --examine "/dev/member/$name-1" | awk '/Data Offset/ { print $4 }')
        echo "$((b_start + BAD)) 16" >"/sys/block/$md/md/dev-$(disk "$name-1")/bad_blocks"
        ;;
    esac
}

echo "$ARRAYS" >/tmp/arrays
number=80
while read -r name level count chunk layout bitmap missing <&4; do
    say "create $name"
    lost=$missing missing=-
    mdadm_create md$number
    missing=$lost
    [ "$bitmap" != internal ] || echo 1 >/sys/block/md$number/md/bitmap/time_base
    # shellcheck disable=SC2046
    xtask pattern write /dev/md$number $(expected "$name")
    number=$((number + 1))
done 4</tmp/arrays

number=80
while read -r name level count chunk layout bitmap missing <&4; do
    say "change $name"
    md=md$number
    change
    case $name in
    rebuild*-cut) wait_clean $md ;;
    *-cut)
        # It stays dirty, however slow the machine.
        echo 1000 >/sys/block/$md/md/safe_mode_delay
        # shellcheck disable=SC2086
        xtask pattern write /dev/$md $WRITES
        ;;
    *)
        # shellcheck disable=SC2086
        xtask pattern write /dev/$md $WRITES
        stop $md
        ;;
    esac
    out left "$name"
    number=$((number + 1))
done 4</tmp/arrays
echo @cut >&3
sleep 60
die "the power was not cut"
