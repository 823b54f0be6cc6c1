# mdadm makes every array of $ARRAYS (lines: name level members chunk layout bitmap missing), loses the missing members
# and writes what is expected to it.
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "create $name"
    mdadm_create md9
    # shellcheck disable=SC2046
    xtask pattern write /dev/md9 $(expected "$name")
    stop md9
    out made "$name"
done 4</tmp/arrays
