# Makes the arrays of $ARRAYS (lines: name level members chunk layout bitmap missing) side by side, as the golden set was made:
# $FIRST and then $SECOND are written, the kernel scrubs, the bitmap's bits are left to clear, the arrays are stopped.
fast_sync
out kernel "$(uname -r)"
out mdadm "$(mdadm --version 2>&1 | head -n 1)"
echo "$ARRAYS" >/tmp/arrays
number=80
while read -r name level count chunk layout bitmap missing <&4; do
    say "create $name"
    options="--metadata=1.2 --level=$level -n $count --chunk=$chunk"
    [ "$layout" = - ] || options="$options --layout=$layout"
    options="$options --bitmap=$bitmap --bitmap-chunk=64K"
    # shellcheck disable=SC2046,SC2086
    mdadm --create /dev/md$number --run --homehost=gold --name="$name" $options $(present "$name" "$count" "$missing") ||
        die "$name: mdadm does not create it"
    out create "$name mdadm --create /dev/mdX --run --homehost=gold --name=$name $options $(present "$name" "$count" "$missing")"
    wait_idle md$number
    # shellcheck disable=SC2086
    xtask pattern write /dev/md$number $FIRST
    # shellcheck disable=SC2086
    xtask pattern write /dev/md$number $SECOND
    out mismatch "$name $(check md$number)"
    number=$((number + 1))
done 4</tmp/arrays

say "waiting for the bitmaps to clear"
number=80
while read -r name level count chunk layout bitmap missing <&4; do
    wait_bitmap_clear "$name"
    wait_clean md$number
    stop md$number
    number=$((number + 1))
done 4</tmp/arrays
