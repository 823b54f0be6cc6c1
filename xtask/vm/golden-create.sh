# Makes the arrays of $ARRAYS (lines: name level members chunk layout bitmap) side by side, as the golden set was made:
# $FIRST and then $SECOND are written, the kernel scrubs, the bitmap's bits are left to clear, the arrays are stopped.
fast_sync
out kernel "$(uname -r)"
out mdadm "$(mdadm --version 2>&1 | head -n 1)"
echo "$ARRAYS" >/tmp/arrays
number=80
while read -r name level count chunk layout bitmap <&4; do
    say "create $name"
    options="--metadata=1.2 --level=$level -n $count --chunk=$chunk"
    [ "$layout" = - ] || options="$options --layout=$layout"
    options="$options --bitmap=$bitmap --bitmap-chunk=64K"
    # shellcheck disable=SC2046,SC2086
    mdadm --create /dev/md$number --run --homehost=gold --name="$name" $options $(members "$name" "$count") ||
        die "$name: mdadm does not create it"
    out create "$name mdadm --create /dev/mdX --run --homehost=gold --name=$name $options $(members "$name" "$count")"
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
while read -r name level count chunk layout bitmap <&4; do
    tries=0
    until mdadm --examine-bitmap "/dev/member/$name-0" | grep -q ' 0 dirty'; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || die "$name: its bitmap does not clear: $(mdadm --examine-bitmap "/dev/member/$name-0")"
        sleep 1
    done
    wait_clean md$number
    stop md$number
    number=$((number + 1))
done 4</tmp/arrays
