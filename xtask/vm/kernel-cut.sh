# mdadm makes the arrays of $ARRAYS (lines: name level members chunk layout bitmap missing); then generation after
# generation is written to $BLOCKS of all of them at once, until the power is cut in the middle of it.
fast_sync
echo "$ARRAYS" >/tmp/arrays
number=80
while read -r name level count chunk layout bitmap missing <&4; do
    mdadm_create md$number
    if [ -e "/dev/member/$name-journal" ]; then
        # The journal makes the array clean from its second start on.
        mdadm --quiet --stop /dev/md$number
        # shellcheck disable=SC2046
        mdadm --assemble /dev/md$number --quiet $(present "$name" "$count" -) || die "$name: mdadm does not assemble it"
    fi
    case $name in *-wb) echo write-back >"/sys/block/md$number/md/journal_mode" ;; esac
    number=$((number + 1))
done 4</tmp/arrays

# A new bitmap has every bit set; only when they are clear does it say anything.
while read -r name level count chunk layout bitmap missing <&4; do
    [ "$bitmap" != internal ] || wait_bitmap_clear "$name"
done 4</tmp/arrays

write_for_ever() {
    for generation in $(seq 1 90); do
        runs=
        for blocks in $BLOCKS; do
            runs="$runs $blocks=$generation"
        done
        # shellcheck disable=SC2086
        xtask pattern write "/dev/$2" $runs
        out acknowledged "$1 $generation"
    done
}

number=80
while read -r name level count chunk layout bitmap missing <&4; do
    say "write $name"
    # The array stays dirty between two generations, however slow the machine.
    echo 10 >/sys/block/md$number/md/safe_mode_delay
    write_for_ever "$name" md$number &
    number=$((number + 1))
done 4</tmp/arrays
sleep 4
echo @cut >&3
sleep 60
die "the power was not cut"
