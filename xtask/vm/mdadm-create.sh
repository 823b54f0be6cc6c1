# mdadm makes every array of $ARRAYS (lines: name level members chunk layout bitmap) and writes $WRITES to it.
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap <&4; do
    say "create $name"
    options="--level=$level --raid-devices=$count --chunk=$chunk"
    [ "$layout" = - ] || options="$options --layout=$layout"
    [ "$level" = 0 ] || options="$options --bitmap=$bitmap"
    [ "$level" = 0 ] || [ "$bitmap" = none ] || options="$options --bitmap-chunk=64K"
    # shellcheck disable=SC2046,SC2086
    mdadm --create /dev/md9 --quiet --run --homehost=vm --name="$name" --metadata=1.2 $options $(members "$name" "$count")
    [ "$level" = 0 ] || wait_idle md9
    # shellcheck disable=SC2086
    xtask pattern write /dev/md9 $WRITES
    out blocks "$name" $(($(blockdev --getsize64 /dev/md9) / 4096))
    stop md9
    out made "$name"
done 4</tmp/arrays
